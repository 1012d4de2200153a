"""deploy/kubernetes is consistent with the schemas, the restricted Pod Security Standard and the repository.

No cluster is needed: Kubernetes' and the operator's schemas define the valid keys, and these tests check what
a schema cannot.
"""

from __future__ import annotations

import copy
import re
import sys
import tomllib
import zipfile
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyspark
import pytest
import typer
import yaml

from lakehouse.cli.main import app
from lakehouse.dev.services.certificates import Authority
from lakehouse.engine.layers import LAYERS
from lakehouse.engine.runtime.triggers import check_trigger
from lakehouse.settings import keys, load_settings
from lakehouse.settings.config_file import CONFIG_VARIABLE
from lakehouse.storage.spark import properties
from lakehouse.storage.spark.jars import jars_directory
from lakehouse.testing import declared
from tests.support.dockerfile import user, workdir
from tests.support.kubernetes import (
    APPLICATION,
    DEPLOY,
    ROOT,
    Object,
    built,
    containers,
    documents,
    pods,
    problems,
)

WAYS = {way: built(way) for way in ("layers", "together")}
OBJECTS = {f"{one['kind']}/{one['metadata']['name']}": one for way in WAYS.values() for one in way}
APPLICATIONS = {name: one for name, one in OBJECTS.items() if one["kind"] == APPLICATION}
PODS = {name: pod for one in OBJECTS.values() for name, pod in pods(one).items()}
SPARK_PODS = {name: pod for name, pod in PODS.items() if name.startswith(APPLICATION)}
OTHER_PODS = {name: pod for name, pod in PODS.items() if name not in SPARK_PODS}
SERVER = "Deployment lakehouse-server"
SETTINGS: dict[str, str] = OBJECTS["ConfigMap/lakehouse"]["data"]
CONFIG: str = OBJECTS["ConfigMap/lakehouse-config"]["data"]["lakehouse.toml"]

# Sizes, which may differ between applications and from lakehouse/storage/spark/spark.properties.
SIZES = {
    "spark.executor.instances",
    "spark.executor.cores",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.kubernetes.executor.request.cores",
    "spark.kubernetes.executor.limit.cores",
    "spark.sql.shuffle.partitions",
    "spark.driver.cores",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.kubernetes.driver.request.cores",
    "spark.kubernetes.driver.limit.cores",
}
# Options that only a standalone master reads.
STANDALONE = {"spark.master.rest.enabled", "spark.ui.killEnabled"}
POLICIES = {
    name.removeprefix("NetworkPolicy/lakehouse-"): one["spec"]
    for name, one in OBJECTS.items()
    if one["kind"] == "NetworkPolicy"
}


def images_conf() -> dict[str, str]:
    """Return the options determined by the image and these manifests."""
    directory = f"{workdir()}/.venv/{jars_directory().relative_to(sys.prefix).as_posix()}"
    jars = f"{directory}/spark/*:{directory}/s3/*"
    return {
        "spark.kubernetes.container.image": image(),
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "lakehouse-driver",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "lakehouse",
        "spark.kubernetes.driver.podTemplateContainerName": "spark-kubernetes-driver",
        "spark.kubernetes.executor.podTemplateContainerName": "spark-kubernetes-executor",
        "spark.pyspark.python": f"{workdir()}/.venv/bin/python",
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.sql.warehouse.dir": "/tmp/spark-warehouse",
        "spark.log.level": "WARN",
        "spark.blockManager.port": "7079",
    }


def image() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return f"lakehouse:{project['tool']['setuptools_scm']['fallback_version']}"


def test_each_object_keeps_the_schema_of_its_kind() -> None:
    assert {name: found for name, one in OBJECTS.items() if (found := problems(one))} == {}


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        (APPLICATION, ("spec", "driverspec"), {}),
        (APPLICATION, ("spec", "sparkConf", "spark.executor.instances"), 2),
        (APPLICATION, ("spec", "driverArgs"), "--trigger"),
        (APPLICATION, ("spec", "applicationTolerations", "restartConfig", "restartPolicy"), "Sometimes"),
        (APPLICATION, ("spec", "applicationTolerations", "restartconfig"), {}),
        (APPLICATION, ("spec", "driverSpec", "podTemplateSpec", "spec", "serviceaccount"), "lakehouse"),
        (APPLICATION, ("spec", "executorSpec", "podTemplateSpec", "spec", "containers"), [{"image": "it"}]),
        (APPLICATION, ("apiVersion",), "spark.apache.org/v1alpha1"),
        ("Deployment", ("spec", "replica"), 1),
        ("Service", ("spec", "ports"), [{"port": "eighty"}]),
        ("CronJob", ("spec", "concurrencyPolicy"), ["Forbid"]),
        ("NetworkPolicy", ("spec", "policyType"), ["Ingress"]),
        ("NetworkPolicy", ("spec", "podSelector"), {"matchLabel": {}}),
        ("PersistentVolumeClaim", ("spec", "accessMode"), ["ReadWriteOnce"]),
        ("Role", ("rules",), [{"apiGroups": [""], "resource": ["pods"], "verbs": ["get"]}]),
    ],
)
def test_the_schemas_refuse_what_they_do_not_know(kind: str, path: tuple[str, ...], value: object) -> None:
    broken = copy.deepcopy(next(one for one in OBJECTS.values() if one["kind"] == kind))
    inner = broken
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert problems(broken) != []


def test_every_file_is_in_the_kustomization_beside_it() -> None:
    files = sorted(DEPLOY.rglob("*.yaml"))
    assert {file.parent.name for file in files} == {"base", "standby", *WAYS}
    for directory in (DEPLOY / "base", DEPLOY / "layers", DEPLOY / "together"):
        (kustomization,) = documents(directory / "kustomization.yaml")
        assert kustomization.keys() == {"apiVersion", "kind", "namespace", "resources"}
        assert (kustomization["apiVersion"], kustomization["kind"]) == (
            "kustomize.config.k8s.io/v1beta1",
            "Kustomization",
        )
        assert kustomization["namespace"] == "lakehouse"
        beside = {file.name for file in files if file.parent == directory} - {"kustomization.yaml"}
        assert set(kustomization["resources"]) - {"../base"} == beside
        assert ("../base" in kustomization["resources"]) is (directory.name != "base")


def test_the_one_that_stands_by_is_the_same_application_under_another_name() -> None:
    (kustomization,) = documents(DEPLOY / "standby" / "kustomization.yaml")
    assert kustomization["resources"] == ["../together"]
    (patched,) = kustomization["patches"]
    assert patched["target"] == {"kind": APPLICATION, "name": "lakehouse-pipeline"}
    assert f"{APPLICATION}/lakehouse-pipeline" in APPLICATIONS
    assert yaml.safe_load(patched["patch"]) == [
        {"op": "replace", "path": path, "value": "lakehouse-standby"}
        for path in ("/metadata/name", "/metadata/labels/app.kubernetes.io~1name")
    ]


def test_every_anchor_is_used() -> None:
    for file in DEPLOY.rglob("*.yaml"):
        events = list(yaml.parse(file.read_text("utf-8")))
        used = {event.anchor for event in events if isinstance(event, yaml.AliasEvent)}
        named = {getattr(event, "anchor", None) for event in events} - {None}
        assert named == used, file.name


@pytest.mark.parametrize("way", WAYS)
def test_no_object_is_there_twice_and_all_are_in_one_namespace(way: str) -> None:
    assert max(Counter((one["kind"], one["metadata"]["name"]) for one in WAYS[way]).values()) == 1
    assert {one["metadata"].get("namespace", one["metadata"]["name"]) for one in WAYS[way]} == {"lakehouse"}


def test_the_applications_are_the_jobs_that_exist() -> None:
    jobs = {name: Path(one["spec"]["pyFiles"]) for name, one in APPLICATIONS.items()}
    assert {name: path.stem for name, path in jobs.items()} == {
        f"{APPLICATION}/lakehouse-{job}": job for job in (*LAYERS, "pipeline")
    }
    for path in jobs.values():
        assert str(path.parent) == f"local:{workdir()}/jobs"  # Path collapses the slashes of local:///
        assert (ROOT / "jobs" / path.name).is_file()
    assert [one["metadata"]["name"] for one in WAYS["layers"] if one["kind"] == APPLICATION] == [
        f"lakehouse-{layer}" for layer in LAYERS
    ]


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_job_runs_until_it_is_stopped_and_is_started_again(name: str) -> None:
    spec = APPLICATIONS[name]["spec"]
    assert spec["pyFiles"].startswith("local:///")
    assert spec["mainClass"] == "org.apache.spark.deploy.PythonRunner"
    option, trigger, *standby = spec["driverArgs"]
    assert option == "--trigger"
    assert standby == (["--standby"] if name == f"{APPLICATION}/lakehouse-pipeline" else [])
    check_trigger(trigger)
    assert spec["applicationTolerations"]["restartConfig"]["restartPolicy"] == "Always"
    assert spec["driverSpec"]["podTemplateSpec"]["spec"]["terminationGracePeriodSeconds"] >= 60


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_has_the_properties_that_every_cluster_needs(name: str) -> None:
    conf: dict[str, str] = APPLICATIONS[name]["spec"]["sparkConf"]
    needed = properties.read(properties.CLUSTER) | images_conf()
    assert {key: value for key, value in conf.items() if key not in SIZES} == {
        key: value for key, value in needed.items() if key not in SIZES | STANDALONE
    }
    assert conf.keys() >= SIZES


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_asks_for_the_cores_that_it_uses(name: str) -> None:
    conf: dict[str, str] = APPLICATIONS[name]["spec"]["sparkConf"]
    assert conf["spark.executor.cores"] == conf["spark.kubernetes.executor.request.cores"]
    assert conf["spark.driver.cores"] == conf["spark.kubernetes.driver.request.cores"]
    for who in ("driver", "executor"):
        asked, most = (int(conf[f"spark.kubernetes.{who}.{what}.cores"]) for what in ("request", "limit"))
        assert asked <= most
    cores = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert int(conf["spark.sql.shuffle.partitions"]) >= cores


def test_the_sparks_are_of_the_version_that_is_locked() -> None:
    locked = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^pyspark==(\S+)", locked, re.MULTILINE)
    assert {one["spec"]["runtimeVersions"]["sparkVersion"] for one in APPLICATIONS.values()} == {version}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the variables and write the file that a container gets."""
    (tmp_path / "lakehouse.toml").write_text(CONFIG)
    for variable, value in SETTINGS.items():
        monkeypatch.setenv(variable, value.replace("/etc/lakehouse/config", str(tmp_path)))


@pytest.mark.usefixtures("given")
def test_the_settings_are_known_and_accepted() -> None:
    assert SETTINGS.keys() <= {*keys.variables(), CONFIG_VARIABLE}
    settings = load_settings()
    assert (settings.lake, str(settings.home)) == ("/lake", "/lake/.home")


def test_the_example_of_a_stream_is_one() -> None:
    (stream,) = declared(re.sub("^# ", "", CONFIG, flags=re.MULTILINE)).values()
    assert (stream.name, stream.gold[0].name) == ("payments", "payments_5m")


@pytest.mark.parametrize("name", PODS)
def test_the_configuration_file_is_mounted_read_only_so_that_nobody_can_change_it(name: str) -> None:
    volumes = [one for one in PODS[name]["spec"]["volumes"] if one["name"] == "config"]
    assert volumes == [{"name": "config", "configMap": {"name": "lakehouse-config"}}]
    mounts = [
        one for each in containers(PODS[name]) for one in each["volumeMounts"] if one["name"] == "config"
    ]
    expected = {"name": "config", "mountPath": "/etc/lakehouse/config", "readOnly": True}
    assert mounts == [expected] * len(containers(PODS[name]))
    assert SETTINGS[CONFIG_VARIABLE] == "/etc/lakehouse/config/lakehouse.toml"


@pytest.mark.parametrize("name", PODS)
def test_what_a_pod_refers_to_exists(name: str) -> None:
    spec = PODS[name]["spec"]
    for volume in spec["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            assert f"PersistentVolumeClaim/{claim['claimName']}" in OBJECTS
    if account := spec.get("serviceAccountName"):
        assert f"ServiceAccount/{account}" in OBJECTS
    names = {volume["name"] for volume in spec["volumes"]}
    for container in containers(PODS[name]):
        assert {mount["name"] for mount in container["volumeMounts"]} == names
        assert [
            one for one in container.get("envFrom", ()) if one != {"configMapRef": {"name": "lakehouse"}}
        ] == []


def test_the_only_secret_is_documented_and_has_what_is_asked_of_it() -> None:
    asked = {
        (secret["name"], secret["key"], variable["name"])
        for pod in PODS.values()
        for container in containers(pod)
        for variable in container.get("env", ())
        if "valueFrom" in variable
        for secret in [variable["valueFrom"]["secretKeyRef"]]
    }
    assert asked == {("lakehouse", "redis-url", "LAKEHOUSE_REDIS_URL")}
    assert "LAKEHOUSE_REDIS_URL" not in SETTINGS
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert re.search(r"create secret generic lakehouse .*--from-\w+=redis-url", page)
    assert not any(one["kind"] == "Secret" for one in OBJECTS.values())


def test_who_talks_to_redis_gets_its_address() -> None:
    with_secret = {
        name for name, pod in PODS.items() if "LAKEHOUSE_REDIS_URL" in map(itemgetter("name"), variables(pod))
    }
    assert with_secret == {
        "Deployment lakehouse-server",
        "SparkApplication lakehouse-export, driver",
        "SparkApplication lakehouse-pipeline, driver",
    }


def test_the_namespace_enforces_the_restricted_standard() -> None:
    labels = OBJECTS["Namespace/lakehouse"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", PODS)
def test_a_pod_keeps_the_restricted_standard(name: str) -> None:
    spec = PODS[name]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert (security["runAsUser"], security["runAsGroup"]) == user() == (1000, 1000)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"sysctls", "windowsOptions", "seLinuxOptions", "appArmorProfile"} & security.keys()
    for container in containers(PODS[name]):
        # The standard's rules, and one of ours: only the lake and /tmp are writable.
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in container.get("ports", ()))
        where = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        own = {"server": "/server"} if name == SERVER else {}
        own |= {"kafka": "/etc/lakehouse/kafka", "config": "/etc/lakehouse/config"}
        assert where == {"lake": SETTINGS["LAKEHOUSE_LAKE"], "tmp": "/tmp", **own}


def test_tokens_lie_where_the_server_alone_writes() -> None:
    spec = PODS[SERVER]["spec"]
    assert [one for one in variables(PODS[SERVER]) if one["name"] == "LAKEHOUSE_SERVER_HOME"] == [
        {"name": "LAKEHOUSE_SERVER_HOME", "value": "/server"}
    ] * len(containers(PODS[SERVER]))
    claims = {
        name: {
            one["persistentVolumeClaim"]["claimName"]
            for one in pod["spec"]["volumes"]
            if len(one) == 2 and "persistentVolumeClaim" in one
        }
        for name, pod in PODS.items()
    }
    assert {name for name, of_pod in claims.items() if "lakehouse-server" in of_pod} == {SERVER}
    assert OBJECTS["Deployment/lakehouse-server"]["spec"]["strategy"] == {"type": "Recreate"}
    assert 'until [ -s "$LAKEHOUSE_SERVER_HOME/tokens.json" ]' in spec["initContainers"][0]["command"][-1]


@pytest.mark.parametrize("name", PODS)
def test_kafkas_secrets_are_files_for_the_pods_group_that_need_not_be_there(name: str) -> None:
    spec = PODS[name]["spec"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == "kafka")
    assert volume["secret"] == {"secretName": "lakehouse-kafka", "optional": True, "defaultMode": 0o440}
    assert spec["securityContext"]["fsGroup"] == 1000
    (mount,) = {
        str(one) for each in containers(PODS[name]) for one in each["volumeMounts"] if one["name"] == "kafka"
    }
    assert mount == str({"name": "kafka", "mountPath": "/etc/lakehouse/kafka", "readOnly": True})
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert "create secret generic lakehouse-kafka --from-file=password --from-file=ca.pem" in page


@pytest.mark.usefixtures("given")
def test_the_example_of_a_secured_kafka_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "kubernetes" / "base" / "configuration.yaml").read_text(encoding="utf-8")
    example = dict(re.findall(r"^  # (LAKEHOUSE_KAFKA_\w+): (\S+)$", text, re.MULTILINE))
    files = {"password": "secret", "ca.pem": Authority().pem}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    for name, value in example.items():
        monkeypatch.setenv(name, value.replace("/etc/lakehouse/kafka", str(tmp_path)))
    access = load_settings().kafka.access
    assert (access.protocol, access.mechanism, access.username) == ("SASL_SSL", "SCRAM-SHA-512", "lakehouse")
    assert access.for_librdkafka()["sasl.password"] == "secret"
    assert set(example) > {"LAKEHOUSE_KAFKA_SASL_PASSWORD_FILE", "LAKEHOUSE_KAFKA_SSL_CA"}


def variables(pod: Object) -> list[Object]:
    return [one for container in containers(pod) for one in container.get("env", ())]


def selected(selector: Object, labels: dict[str, str]) -> bool:
    """Return whether a selector matches labels; the only operator is In."""
    equal = selector.get("matchLabels", {})
    within = selector.get("matchExpressions", [])
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    assert {one["operator"] for one in within} <= {"In"}
    return equal.items() <= labels.items() and all(labels.get(one["key"]) in one["values"] for one in within)


def labels_of(name: str) -> dict[str, str]:
    """Return a pod's labels, including those that Spark adds."""
    role = {"spark-role": name.rpartition(" ")[2]} if name in SPARK_PODS else {}
    own: dict[str, str] = PODS[name]["metadata"]["labels"]
    return own | role


def allowed(name: str, direction: str) -> set[tuple[str, str]]:
    """Return what policies allow a pod, as (peer, ports). A peer is a pod here, a namespace, or anybody."""
    found = set()
    for policy in POLICIES.values():
        if selected(policy["podSelector"], labels_of(name)):
            for rule in policy.get(direction, ()):
                ports = " ".join(f"{one['protocol']}/{one['port']}" for one in rule["ports"])
                for peer in rule.get("from" if direction == "ingress" else "to", [None]):
                    found |= {(who, ports) for who in peers(peer)}
    return found


def peers(peer: Object | None) -> set[str]:
    if peer is None:
        return {"anybody"}
    if "namespaceSelector" in peer:
        return {"namespace " + peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]}
    return {one.rpartition(" ")[2] for one in PODS if selected(peer["podSelector"], labels_of(one))}


EVERYWHERE = {("namespace kube-system", "UDP/53 TCP/53"), ("namespace kafka", "TCP/9092")}


def test_nothing_is_allowed_that_no_policy_names() -> None:
    nothing = POLICIES["nothing"]
    assert nothing == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_kafka_and_redis_are_reached_where_the_settings_look_for_them() -> None:
    host, _, port = SETTINGS["LAKEHOUSE_KAFKA_BOOTSTRAP_SERVERS"].rpartition(":")
    assert (f"namespace {host.split('.')[1]}", f"TCP/{port}") in EVERYWHERE


@pytest.mark.parametrize("name", PODS)
def test_a_pod_reaches_and_is_reached_by_what_it_needs(name: str) -> None:
    kind = name.rpartition(" ")[2]
    scraped = {("namespace monitoring", f"TCP/{SETTINGS['LAKEHOUSE_TELEMETRY_PORT']}")}
    redis = {("namespace redis", "TCP/6379")}
    blocks = {("driver", "TCP/7079"), ("executor", "TCP/7079")}
    reached_by: dict[str, set[tuple[str, str]]] = {
        "driver": scraped | {("executor", "TCP/7078 TCP/7079")},
        "executor": blocks,
        "lakehouse-server": scraped | {("namespace ingress-nginx", "TCP/8000")},
        "lakehouse-maintenance": set(),
    }
    reaches: dict[str, set[tuple[str, str]]] = {
        "driver": redis | {("executor", "TCP/7079"), ("anybody", "TCP/443 TCP/6443")},
        "executor": blocks | {("driver", "TCP/7078")},
        "lakehouse-server": redis,
        "lakehouse-maintenance": set(),
    }
    assert allowed(name, "ingress") == reached_by[kind]
    assert allowed(name, "egress") == EVERYWHERE | reaches[kind]


def test_sparks_ports_and_labels_are_those_of_the_policies() -> None:
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        constants = classes.read("org/apache/spark/deploy/k8s/Constants$.class")
    assert [name for name in (b"spark-role", b"driver", b"executor") if name not in constants] == []
    # Bytecode contains a short integer as the operand of sipush.
    assert [port for port in (7078, 7079) if b"\x11" + port.to_bytes(2, "big") not in constants] == []


def test_only_drivers_get_a_token_for_the_api_server() -> None:
    without = {name for name, pod in PODS.items() if pod["spec"].get("automountServiceAccountToken") is False}
    assert PODS.keys() - without == {name for name in PODS if name.endswith(", driver")}
    assert OBJECTS["ServiceAccount/lakehouse"]["automountServiceAccountToken"] is False
    rights = {
        resource: set(rule["verbs"])
        for rule in OBJECTS["Role/lakehouse-driver"]["rules"]
        for resource in rule["resources"]
    }
    assert rights.keys() == {"pods", "services", "configmaps", "persistentvolumeclaims"}
    assert rights["persistentvolumeclaims"] == {"get", "list", "watch"}
    binding = OBJECTS["RoleBinding/lakehouse-driver"]
    assert f"Role/{binding['roleRef']['name']}" in OBJECTS
    assert [f"ServiceAccount/{one['name']}" for one in binding["subjects"]] == [
        "ServiceAccount/lakehouse-driver"
    ]


@pytest.mark.parametrize("name", OTHER_PODS)
def test_a_container_is_of_the_image_and_has_bounds(name: str) -> None:
    for container in containers(OTHER_PODS[name]):
        assert container["image"] == image()
        resources = container["resources"]
        assert resources["requests"].keys() == resources["limits"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize("name", SPARK_PODS)
def test_spark_finds_its_container_in_the_template(name: str) -> None:
    which = name.rpartition(" ")[2]
    (container,) = containers(SPARK_PODS[name])
    assert container["name"] == f"spark-kubernetes-{which}"
    assert not {"image", "resources", "command", "args"} & container.keys(), "Spark sets these"


@pytest.mark.parametrize("name", OTHER_PODS)
def test_commands_are_called_with_options_that_they_have(name: str) -> None:
    (container,) = OTHER_PODS[name]["spec"]["containers"]
    command: Any = typer.main.get_command(app)
    program, *arguments = container["args"]
    assert program == "lakehouse"
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(name, list(arguments))  # exits with a message if an option is unknown


def test_probes_and_the_service_find_the_ports_that_are_served() -> None:
    (server,) = OBJECTS["Deployment/lakehouse-server"]["spec"]["template"]["spec"]["containers"]
    given = dict(zip(server["args"], server["args"][1:], strict=False))
    ports = {port["name"]: str(port["containerPort"]) for port in server["ports"]}
    assert ports == {"http": given["--port"], "telemetry": given["--telemetry-port"]}
    assert ports["telemetry"] == SETTINGS["LAKEHOUSE_TELEMETRY_PORT"]
    assert [probes(server), given["--host"]] == [
        {
            "startupProbe": ("/health/live", "http"),
            "livenessProbe": ("/health/live", "http"),
            "readinessProbe": ("/health/ready", "http"),
        },
        "0.0.0.0",
    ]
    service, deployment = (
        OBJECTS["Service/lakehouse-server"]["spec"],
        OBJECTS["Deployment/lakehouse-server"]["spec"],
    )
    labels = deployment["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert {port["targetPort"] for port in service["ports"]} <= ports.keys()
    assert given["--allow-host"] == OBJECTS["Service/lakehouse-server"]["metadata"]["name"]


@pytest.mark.parametrize("name", sorted(name for name in SPARK_PODS if name.endswith("driver")))
def test_a_driver_is_alive_while_its_telemetry_answers(name: str) -> None:
    (driver,) = containers(SPARK_PODS[name])
    port = int(SETTINGS["LAKEHOUSE_TELEMETRY_PORT"])
    assert probes(driver) == {
        "startupProbe": ("/health/live", port),
        "livenessProbe": ("/health/live", port),
    }
    annotations = SPARK_PODS[name]["metadata"]["annotations"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}


def probes(container: Object) -> dict[str, tuple[str, int | str]]:
    found = {key: value["httpGet"] for key, value in container.items() if key.endswith("Probe")}
    return {key: (get["path"], get["port"]) for key, get in found.items()}
