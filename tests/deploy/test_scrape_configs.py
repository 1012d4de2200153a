"""docs/monitoring.md: Prometheus takes each configuration, and they fit docker-compose and the manifests."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubernetes import Object, built, pods
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
PROMETHEUS = ROOT / "docker" / "prometheus"


def configured(heading: str) -> Any:
    """Return the configuration in a section of the page."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n#")[0]
    (block,) = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(block)


def annotated() -> Iterator[tuple[str, Object]]:
    """Yield the manifests' pods that Prometheus scrapes, each with its namespace."""
    for way in ("layers", "together"):
        for one in built(way):
            for pod in pods(one).values():
                if "prometheus.io/scrape" in pod["metadata"].get("annotations", {}):
                    yield one["metadata"]["namespace"], pod


@pytest.mark.parametrize("heading", ["One process", "Several processes", "Kubernetes"])
def test_prometheus_takes_the_configuration(heading: str, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: scripts/prometheus.sh installs it"
    config = configured(heading)
    for job in config["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)  # Debian builds Prometheus without it
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copy(PROMETHEUS / "rules.yml", tmp_path)
    subprocess.run([promtool, "check", "config", str(file)], check=True, capture_output=True)


def test_several_processes_are_those_of_docker_compose() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    assert configured("Several processes")["scrape_configs"] == config["scrape_configs"]


def test_on_kubernetes_each_annotated_pod_is_one_target() -> None:
    (job,) = configured("Kubernetes")["scrape_configs"]
    (discovery,) = job["kubernetes_sd_configs"]
    found = list(annotated())
    assert len(found) > 4
    assert discovery["role"] == "pod"
    assert {namespace for namespace, _ in found} == set(discovery["namespaces"]["names"])
    for _, pod in found:
        labels = relabelled(job["relabel_configs"], pod["metadata"]["annotations"])
        assert labels == {"__address__": "10.0.0.7:9464", "instance": "a-pod"}
    assert relabelled(job["relabel_configs"], {}) is None


def relabelled(rules: list[Object], annotations: dict[str, str]) -> dict[str, str] | None:
    """Return the labels that the rules set for a pod with these annotations, or None if it is dropped."""
    prefix = "__meta_kubernetes_pod"
    meta = {f"{prefix}_ip": "10.0.0.7", f"{prefix}_name": "a-pod"}
    for name, value in annotations.items():
        meta[f"{prefix}_annotation_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"] = value
    labels: dict[str, str] = {}
    for rule in rules:
        joined = rule.get("separator", ";").join(meta.get(one, "") for one in rule["source_labels"])
        if rule.get("action") == "keep":
            if re.fullmatch(rule["regex"], joined) is None:
                return None
        else:
            labels[rule["target_label"]] = joined
    return labels
