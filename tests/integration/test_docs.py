"""README and docs: blocks marked as runnable run, and tables match the code."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from lakehouse.operations.doctor.rights import rights_of_pipeline
from lakehouse.settings import Settings
from lakehouse.settings.keys import variables
from tests.support.processes import BIN, QUICK_JVM, ROOT
from tests.support.shell import run_block
from tests.support.streams import STREAMS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TIMEOUT_S = 300


def runnable(page: Path) -> list[str]:
    """Return the blocks of a page that are marked as runnable."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```sh runnable\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def with_topics_of(block: str, settings: Settings) -> str:
    """Return a block in which the coordinates of records have the names that the settings give the topics."""
    for topic, name in settings.topics.items():
        block = re.sub(rf"\b{re.escape(topic)}(?=/\d)", name, block)
    return block


def environment_of(settings: Settings) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("LAKEHOUSE_")},
        "LAKEHOUSE_STREAMS": json.dumps(settings.streams),
        **QUICK_JVM,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "LAKEHOUSE_HOME": str(settings.home),
        "LAKEHOUSE_LAKE": settings.lake,
        "LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "LAKEHOUSE_REDIS_URL": settings.redis.url.get_secret_value(),
        "LAKEHOUSE_TOPICS": json.dumps(dict(settings.topics)),
        "TRANSACTIONS_TOPIC": settings.topic("transactions-topic"),
        "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
    }


@pytest.mark.soak
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_a_runnable_block_runs(page: Path, filled_lake: Settings, nameless: SparkSession) -> None:
    for told in runnable(page):
        block = with_topics_of(told, filled_lake)
        ended = run_block(block, environment_of(filled_lake), nameless, TIMEOUT_S)
        assert ended.returncode == 0, f"{block}{ended.stdout[-2000:]}{ended.stderr[-2000:]}"


def test_pages_have_something_to_run() -> None:
    assert sum(bool(runnable(page)) for page in PAGES) >= 15


def test_a_page_that_the_code_names_is_there() -> None:
    kinds = ("*.py", "*.yaml", "*.properties")
    sources = [
        path for kind in kinds for part in ("lakehouse", "deploy") for path in (ROOT / part).rglob(kind)
    ]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    named = {name for text in texts for name in re.findall(r"docs/(?:decisions/)?[a-z0-9-]+\.md", text)}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_every_setting_is_on_its_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("settings*.md"))
    named = set(re.findall(r"`LAKEHOUSE_([A-Z_0-9]+)`", text)) - {"CONFIG", "CACHE"}
    files = {name for name, key in variables().items() if name != key.variable}
    assert {f"LAKEHOUSE_{name}" for name in named} - files == variables().keys() - files


def test_the_page_on_security_names_the_ports_that_containers_publish() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    published = {port.split(":")[1] for service in services.values() for port in service.get("ports", ())}
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| ([\d, ]+) \| `docker compose`", text, re.MULTILINE)
    assert set(row.split(", ")) == published


def test_the_page_on_kafka_names_the_rights() -> None:
    text = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    table = text.partition("## Rights in Kafka")[2]
    rows = re.findall(r"^\| ([A-Z][A-Za-z, ]+) \| ([^|]+) \|", table, re.MULTILINE)
    kinds = ("transactional id", "group", "topic")
    listed = {
        (operation, next(kind for kind in kinds if kind in on), "not required" not in on)
        for operations, on in rows
        for operation in operations.split(", ")
    }
    needed = rights_of_pipeline(STREAMS, Settings())
    assert listed == {(one.operation, one.kind, one.is_required) for one in needed}
