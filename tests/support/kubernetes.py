"""The objects that `kubectl apply --kustomize` sends for deploy/kubernetes, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.37"
CRD = Path(__file__).parents[1] / "fixtures" / "spark_kubernetes_operator" / "sparkapplication.v1.json"
APPLICATION = "SparkApplication"
LIST = ("v1", "List")

Object = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """A loader that refuses repeated keys, like kubectl; PyYAML would use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"{twice} twice{node.start_mark}"
        return super().construct_mapping(node, deep)


def documents(file: Path) -> list[Object]:
    """Return the objects in a file; the items of a List are returned separately."""
    found = list(yaml.load_all(file.read_text(encoding="utf-8"), _Loader))
    return [
        item
        for one in found
        for item in (one["items"] if (one["apiVersion"], one["kind"]) == LIST else [one])
    ]


def built(name: str) -> list[Object]:
    """Return the objects of a kustomization in deploy/kubernetes, and of those that it includes."""
    return list(_resources(DEPLOY / name))


def _resources(directory: Path) -> Iterator[Object]:
    (kustomization,) = documents(directory / "kustomization.yaml")
    for resource in kustomization["resources"]:
        path = (directory / resource).resolve()
        if path.is_dir():
            yield from _resources(path)
        else:
            yield from documents(path)


def problems(found: Object) -> list[str]:
    """Return the errors that an object's schema finds, including unknown names."""
    try:
        if found["kind"] != APPLICATION:
            kubernetes_validate.validate(found, KUBERNETES, strict=True)
            return []
        for which in (
            "driverSpec",
            "executorSpec",
        ):  # also check the pods against Kubernetes' own schema
            template = found["spec"][which]["podTemplateSpec"]
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return [error.message for error in _OPERATOR.iter_errors(found)]


def _strict(schema: Any) -> Any:
    """Refuse names that a schema does not list, if it lists any; the API server would drop them."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def _operator() -> Draft202012Validator:
    schema = _strict(json.loads(CRD.read_text(encoding="utf-8")))
    # Fields of every object, which a CRD does not list.
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    metadata = {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": labels}
    schema["properties"] |= {
        "apiVersion": {"const": "spark.apache.org/v1"},
        "kind": {"const": APPLICATION},
        "metadata": {"type": "object", "properties": metadata, "additionalProperties": False},
    }
    return Draft202012Validator(schema | {"required": ["apiVersion", "kind", "metadata", "spec"]})


_OPERATOR = _operator()


def pods(found: Object) -> dict[str, Object]:
    """Return the pods that an object creates, by its name, with their `metadata` and `spec`."""
    name, spec = f"{found['kind']} {found['metadata']['name']}", found.get("spec", {})
    match found["kind"]:
        case "SparkApplication":
            return {
                f"{name}, {which}": spec[f"{which}Spec"]["podTemplateSpec"]
                for which in ("driver", "executor")
            }
        case "Deployment":
            return {name: spec["template"]}
        case "CronJob":
            return {name: spec["jobTemplate"]["spec"]["template"]}
        case _:
            return {}


def containers(pod: Object) -> list[Object]:
    """Return every container of a pod, including init containers."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
