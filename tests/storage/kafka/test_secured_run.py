"""The pipeline as processes on a broker with TLS and users: with exactly the listed rights, or one fewer."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from lakehouse.dev.services import services
from lakehouse.operations.doctor.rights import rights_of_pipeline, rights_of_producer
from lakehouse.settings import Settings, load_settings
from lakehouse.settings.kafka_access import KafkaAccess
from lakehouse.storage.kafka.rights import Right, grant
from lakehouse.storage.kafka.topics import create_topics
from lakehouse.streams.registry import BY_DEFAULT
from tests.storage.kafka.revoking import revoke
from tests.support.processes import BIN, LAKEHOUSE, Process, finish, running, submit, unused_port

STREAMS = ("metrics", "calls", "sales", "transactions")
TWO = ["--stream", "calls", "--stream", "sales"]
EVENTS = 400


@dataclass(frozen=True)
class Secured:
    """A home with a secured broker, its administrator, and the environments of its user and producer."""

    home: Path
    settings: Settings
    admin: KafkaAccess
    user: dict[str, str]
    producer: dict[str, str]

    def produce(self, stream: str, seed: int) -> None:
        command = [LAKEHOUSE, "produce", stream, "--events", str(EVENTS), "--seed", str(seed)]
        done = finish(command, self.producer)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured") / "home"
    settings = load_settings().changed({"home": home})
    with services.local_services(settings, secure=True) as endpoints:
        settings = settings.changed({"lake": str(home / "lake"), **endpoints.update})
        admin = services.administrator(settings)
        assert admin is not None
        create_topics(admin, {name: 2 for stream in BY_DEFAULT for name in stream.topics})
        create_topics(admin, {"lakehouse-alerts": 1, "lakehouse-alerts-state": 1})
        rights = [one for one in rights_of_pipeline(BY_DEFAULT, settings) if one.is_required]
        grant(admin, "lakehouse", rights)
        grant(admin, "producer", rights_of_producer(BY_DEFAULT, settings))
        conf = home.parent / "conf"
        conf.mkdir()
        events = home.parent / "events"
        events.mkdir()
        (conf / "spark-defaults.conf").write_text(
            f"spark.eventLog.enabled true\nspark.eventLog.compress false\n"
            f"spark.eventLog.dir {events.as_uri()}\n"
        )
        user = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "COLUMNS": "300",
            "LAKEHOUSE_HOME": str(home),  # services.json has the rest
            "LAKEHOUSE_SPARK_DRIVER_MEMORY": "1g",
            "SPARK_CONF_DIR": str(conf),
        }
        password = home / "kafka" / "security" / "producer.password"
        producer = {
            **user,
            "LAKEHOUSE_KAFKA_SASL_USERNAME": "producer",
            "LAKEHOUSE_KAFKA_SASL_PASSWORD_FILE": str(password),
        }
        yield Secured(home, settings, admin, user, producer)


@pytest.mark.soak
def test_the_listed_rights_are_enough_and_no_secret_is_anywhere(secured: Secured) -> None:
    for number, stream in enumerate(STREAMS):
        secured.produce(stream, number)

    caught_up = finish([LAKEHOUSE, "run", "all", "--trigger", "available-now"], secured.user)
    audit = finish([LAKEHOUSE, "audit"], secured.user)
    status = finish([LAKEHOUSE, "status"], secured.user)
    outputs = [one.stdout + one.stderr for one in (caught_up, audit, status)]

    assert (caught_up.returncode, audit.returncode) == (0, 0), outputs
    assert "the broker does not show User:lakehouse the limits of these topics" in outputs[0]
    assert found(secured, *outputs) == []


RIGHTS = (
    (Right("Read", "topic", "metricsTopic", ""), "bronze.call_metrics", "Describe topic metricsTopic"),
    (Right("Write", "topic", "outputTopic", ""), "export.call_records", "Write to topic outputTopic"),
    (Right("Read", "topic", "outputTopic", ""), "export.call_records", "Read topic outputTopic"),
)


@pytest.mark.soak
def test_each_right_that_is_taken_away_is_named_by_run_and_status_while_the_rest_goes_on(
    secured: Secured, tmp_path: Path
) -> None:
    port = unused_port()
    pages = ("ui.enabled=true", f"ui.port={port}", "sql.ui.retainedExecutions=1000")
    confs = [word for page in pages for word in ("--conf", f"spark.{page}")]
    command, *arguments = submit("pipeline", *TWO)
    with running([command, *confs, *arguments], secured.user, tmp_path / "run") as run:
        run.await_output("running")
        for number, (right, step, said) in enumerate(RIGHTS):
            text = f"User:lakehouse may not {said}: denied by the Kafka broker"
            revoke(secured.admin, "lakehouse", right)
            secured.produce("calls", 100 + number)
            run.await_output(text)
            assert text in (failing(secured)[step] or "")

            before = run.output.count("export.product_sales batch")
            secured.produce("sales", 200 + number)
            run.await_(partial(is_more_often, run, "export.product_sales batch", before))

            before = run.output.count(f"{step} works again")
            grant(secured.admin, "lakehouse", [right])
            run.await_(partial(is_more_often, run, f"{step} works again", before))
        before = run.output.count("bronze.call_metrics batch")
        secured.produce("calls", 300)
        run.await_(partial(is_more_often, run, "bronze.call_metrics batch", before))
        assert found(secured, run.everything(), *shown(f"http://127.0.0.1:{port}")) == []
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 0, run.everything()
    caught_up = finish([LAKEHOUSE, "run", "all", "--trigger", "available-now", *TWO], secured.user)
    audit = finish([LAKEHOUSE, "audit", *TWO], secured.user)
    assert (caught_up.returncode, audit.returncode) == (0, 0), audit.stdout


def is_more_often(run: Process, text: str, before: int) -> bool:
    return run.output.count(text) > before


def failing(secured: Secured) -> dict[str, str | None]:
    """Return each step's current error, according to status."""
    status = finish([LAKEHOUSE, "status", "--format", "json"], secured.user)
    runs = [run for stream in json.loads(status.stdout)["streams"] for run in stream["runs"]]
    return {query["name"]: query["error"] for run in runs for query in run["queries"]}


def shown(spark_ui: str) -> list[str]:
    """Return what Spark's own pages and its API show of the run."""
    api = f"{spark_ui}/api/v1/applications"
    app = json.loads(fetched(api))[0]["id"]
    jobs = fetched(f"{api}/{app}/jobs")
    assert "bronze.call_metrics" in jobs, "what reads Kafka is not listed"
    paths = ("sql?details=true&planDescription=true&length=1000", "environment", "stages", "executors")
    pages = [fetched(f"{spark_ui}/{path}/") for path in ("environment", "SQL", "jobs")]
    return [jobs, *(fetched(f"{api}/{app}/{path}") for path in paths), *pages]


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - on this machine
        return str(answer.read().decode())


def found(secured: Secured, *texts: str) -> list[str]:
    """Return where a password or a key appears: outputs, command lines, and files other than its own."""
    own = secured.home / "kafka" / "security"
    secrets = [(own / f"{user}.password").read_bytes() for user in ("lakehouse", "producer")]
    secrets += [path.read_bytes().splitlines()[1] for path in own.glob("*-key.pem")]
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    places = {f"output {number}": text.encode() for number, text in enumerate((*texts, *lines))}
    for path in secured.home.parent.rglob("*"):
        if path.is_file() and not path.is_relative_to(own):
            places[str(path)] = path.read_bytes()
    return [name for name, content in places.items() if any(secret in content for secret in secrets)]
