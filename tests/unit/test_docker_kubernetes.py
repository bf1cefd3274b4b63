"""The Helm chart, rendered by Helm: objects that Kubernetes takes, settings that spillway takes,
sized with the arithmetic that it states, and no more rights than are used."""

from __future__ import annotations

import json
import tomllib
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from pydantic import ByteSize, TypeAdapter
from yaml import CSafeLoader, load

from spillway.doctor import machine
from spillway.stream.session import LOCAL_HEAP
from spillway_airflow.launchers import GONE_S, STOP_S, KubernetesLauncher
from spillway_schemas.query import load_query
from spillway_schemas.secret import _HARMLESS
from spillway_schemas.settings import Settings, catalogue, load_settings, values
from tests.doc_blocks import blocks
from tests.docker_files import (
    CHART,
    HEADROOM,
    ROOT,
    USER,
    helm,
    rendered,
    size,
    spark_defaults,
    version,
)

OWN_QUERY = """\
[streams.order]
topic = "shop.orders"
fields = { id = "string", total = "decimal(12,2)" }

[streams.payment]
topic = "shop.payments"
fields = { order_id = "string" }

[join]
inputs = ["order", "payment"]
on = [{ name = "id", columns = { order = "id", payment = "order_id" } }]
"""
OWN: dict[str, Any] = {
    "settings": {
        "query": "orders.toml",
        "kafka": {
            "bootstrap_servers": "kafka-1.example.com:9093",
            "options": {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/etc/kafka/ca.crt",
            },
        },
        "warehouse": {"root": "s3://lake/orders", "options": {"aws_region": "eu-west-1"}},
        "state": {"budget_bytes": "256 MiB", "slots": 6},
        "session": {"calendar": "24/7 Europe/Berlin", "overrides": "2026-07-06 closed"},
        "metrics": {"listen": "0.0.0.0:9464"},
    },
    "files": {"orders.toml": OWN_QUERY},
    "cores": 4,
    "memoryMi": {"worker": 768},
    "image": {"repository": "registry.example.com/spillway", "pullSecrets": ["pull"]},
    "secrets": ["orders-kafka", "orders-store"],
    "secretFiles": {"kafka.ca": "/etc/kafka", "a-store": "/etc/store"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
    "airflow": {"serviceAccount": ""},
    "podAnnotations": {"example.com/team": "desk"},
    "podLabels": {"team": "desk"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "desk", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "desk",
}
"""Something for every value that the chart has."""
PAGE: dict[str, Any] = next(
    load("\n".join(block.lines), CSafeLoader)
    for block in blocks()
    if block.page.name == "deployment.md" and block.language == "yaml"
)
"""The example of `docs/deployment.md`."""
SMALL: dict[str, Any] = {
    "settings": {"state": {"budget_bytes": 67108864}, "warehouse": {"root": "/data/tables/"}},
    "cores": 1,
    "claim": {"name": "tables"},
}


@dataclass(frozen=True)
class Release:
    """A rendered release."""

    values: Mapping[str, Any]
    objects: dict[str, dict[str, Any]]

    @property
    def deployment(self) -> dict[str, Any]:
        return self.objects["Deployment"]

    @property
    def pod(self) -> dict[str, Any]:
        found: dict[str, Any] = self.deployment["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> dict[str, Any]:
        [found] = self.pod["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def volumes(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.pod["volumes"]}

    @property
    def mounts(self) -> dict[str, dict[str, Any]]:
        mounted = self.container["volumeMounts"]
        return {each["mountPath"]: self.volumes[each["name"]] for each in mounted}

    def settings(self, folder: Path) -> Settings:
        """As spillway reads them in the pod."""
        for name, text in self.objects["ConfigMap"]["data"].items():
            (folder / name).write_text(text)
        environ = {each["name"]: each["value"] for each in self.container["env"]}
        return load_settings(folder / "spillway.toml", environ=environ)[0]


@pytest.fixture(scope="module", params=["default", "own", "page", "small"])
def release(request: pytest.FixtureRequest) -> Release:
    given = {"default": {}, "own": OWN, "page": PAGE, "small": SMALL}[request.param]
    return Release(given, rendered(given))


@pytest.fixture(scope="module")
def default() -> Release:
    return Release({}, rendered())


@pytest.fixture(scope="module")
def own() -> Release:
    return Release(OWN, rendered(OWN, "orders", "desk"))


@pytest.mark.parametrize("kubernetes", ["1.31", "1.34", "1.37"])
def test_it_keeps_the_api(release: Release, kubernetes: str) -> None:
    for each in release.objects.values():
        assert kubernetes_validate.validate(each, kubernetes, strict=True) == kubernetes


def test_helm_finds_nothing_to_mend() -> None:
    for given in ({}, OWN, PAGE, SMALL):
        done = helm("lint", "--strict", CHART, "--values", "-", given=json.dumps(given))
        assert done.returncode == 0, done.stdout + done.stderr


def test_where_everything_is_tested_there_is_helm() -> None:
    assert "helm" in (ROOT / ".ci" / "run").read_text()


def test_objects_name_each_other(release: Release) -> None:
    names = {kind: each["metadata"]["name"] for kind, each in release.objects.items()}
    assert {each["metadata"]["namespace"] for each in release.objects.values()} == {"spillway"}
    assert release.volumes["settings"]["configMap"]["name"] == names["ConfigMap"]
    assert release.pod["serviceAccountName"] == names["ServiceAccount"]
    labels = release.deployment["spec"]["template"]["metadata"]["labels"]
    assert release.deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    if "PersistentVolumeClaim" in names:
        claim = release.volumes["warehouse"]["persistentVolumeClaim"]
        assert claim["claimName"] == names["PersistentVolumeClaim"]
        kept = release.objects["PersistentVolumeClaim"]["metadata"]["annotations"]
        assert kept["helm.sh/resource-policy"] == "keep"
    if "RoleBinding" in names:
        assert release.objects["RoleBinding"]["roleRef"]["name"] == names["Role"]


def test_two_releases_share_nothing() -> None:
    one, other = rendered(), rendered(release="other")
    assert one.keys() == other.keys()
    for kind in one:
        assert one[kind]["metadata"]["name"] != other[kind]["metadata"]["name"]
    labels = [each["Deployment"]["spec"]["selector"]["matchLabels"] for each in (one, other)]
    assert labels[0] != labels[1]


def test_a_release_has_what_its_values_say(own: Release) -> None:
    assert own.container["image"] == f"registry.example.com/spillway:{version()}"
    assert own.pod["imagePullSecrets"] == [{"name": "pull"}]
    assert own.container["envFrom"] == [
        {"secretRef": {"name": "orders-kafka"}},
        {"secretRef": {"name": "orders-store"}},
    ]
    assert own.mounts["/etc/kafka"]["secret"] == {"secretName": "kafka.ca", "defaultMode": 0o440}
    assert own.mounts["/etc/store"]["secret"]["secretName"] == "a-store"
    assert own.container["ports"] == [{"name": "metrics", "containerPort": 9464}]
    account = own.objects["ServiceAccount"]["metadata"]
    assert account["annotations"] == OWN["serviceAccount"]["annotations"]
    template = own.deployment["spec"]["template"]["metadata"]
    assert template["annotations"]["example.com/team"] == template["labels"]["team"] == "desk"
    for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert own.pod[name] == OWN[name]
    assert {"PersistentVolumeClaim", "Role", "RoleBinding"}.isdisjoint(own.objects)
    assert {each["metadata"]["namespace"] for each in own.objects.values()} == {"desk"}


def test_a_claim_that_is_there_is_used(tmp_path: Path) -> None:
    small = Release(SMALL, rendered(SMALL))
    assert "PersistentVolumeClaim" not in small.objects
    assert small.mounts["/data/tables"]["persistentVolumeClaim"] == {"claimName": "tables"}
    made = rendered({"claim": {"storageClass": "fast", "size": "1Ti"}})
    spec = made["PersistentVolumeClaim"]["spec"]
    assert spec["storageClassName"] == "fast"
    assert spec["resources"]["requests"]["storage"] == "1Ti"


# --- settings -----------------------------------------------------------------------------------


def test_the_query_is_found_beside_the_settings(own: Release, tmp_path: Path) -> None:
    settings = own.settings(tmp_path)
    assert settings.warehouse.root == "s3://lake/orders"
    assert settings.session.calendar == "24/7 Europe/Berlin"
    query = load_query(str(tmp_path / settings.query))
    assert [stream.topic for stream in query.streams.values()] == ["shop.orders", "shop.payments"]
    assert {each["value"] for each in own.container["env"] if each["name"] == "SPARK_CONF_DIR"} == {
        "/etc/spillway"
    }


def test_every_setting_can_be_said(tmp_path: Path) -> None:
    """And is what was said: whole numbers, sizes, truths and texts are written as TOML has them."""
    others = {
        "kafka.options": {"fetch.max.wait.ms": 20, "client.id": 'a "quoted" \\ <näme>\n2'},
        "kafka.data_dir": "/srv/var/kafka",
        "warehouse.root": "/srv/warehouse",
        "state.budget_bytes": 12345678901,
    }
    follow = {"state.root": "/dev/shm/spillway", "state.slots": 2, "spark.master": "local[2]"}
    said = {each.name: each.default for each in catalogue()} | others
    # YAML has one kind of number, so 20.0 is 20.
    said = {k: int(v) if isinstance(v, float) and v % 1 == 0 else v for k, v in said.items()}
    found = rendered({"settings": nested({k: v for k, v in said.items() if k not in follow})})
    text = found["ConfigMap"]["data"]["spillway.toml"]
    assert exactly(tomllib.loads(text)) == exactly(nested(said | follow))
    settings = Release({}, found).settings(tmp_path)
    assert values(settings) | {"kafka.options": None} == {**said, **follow, "kafka.options": None}
    assert settings.kafka.options["client.id"].get_secret_value().endswith("<näme>\n2")


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names as a table of tables."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, inner = name.rpartition(".")
        (found.setdefault(section, {}) if section else found)[inner] = value
    return found


def exactly(value: Any) -> str:
    """A text that tells 2 from 2.0 and true from 1."""
    return json.dumps(value, sort_keys=True)


def test_a_change_of_settings_is_a_new_pod(default: Release) -> None:
    changed = rendered({"settings": {"stream": {"trigger_s": 2}}})

    def template(each: dict[str, Any]) -> Any:
        return each["spec"]["template"]

    assert template(changed["Deployment"]) != template(default.deployment)
    assert template(rendered()["Deployment"]) == template(default.deployment)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"setings": {}}, "setings"),
        ({"cores": 0}, "cores"),
        ({"claim": {"size": "200"}}, "size"),
        ({"files": {"spillway.toml": ""}}, "spillway.toml"),
        ({"settings": {"spark": {"master": "spark://h:7077"}}}, "say `cores` instead"),
        ({"settings": {"state": {"root": "/state"}}}, "leave it out"),
        ({"settings": {"state": {"budget_bytes": None}}}, "how much memory a slot has"),
        ({"settings": {"state": {"budget_bytes": "1 fortnight"}}}, "1fortnight is no size"),
        ({"settings": {"warehouse": {"root": "var/warehouse"}}}, "neither an absolute path nor"),
        ({"settings": {"queries": {"a": {}}}}, "install one for each query"),
        (
            {"settings": {"kafka": {"options": {"sasl.jaas.config": "x"}}}},
            "sasl.jaas.config is a secret: put it into a Secret under SPILLWAY_KAFKA__OPTIONS",
        ),
        (
            # What `--set settings.kafka.options.sasl.jaas.config=x` makes of it.
            {"settings": {"kafka": {"options": {"sasl": {"jaas": {"config": "x"}}}}}},
            "sasl.jaas is a secret: put it into a Secret under SPILLWAY_KAFKA__OPTIONS",
        ),
        (
            {"settings": {"registry": {"options": {"ssl": {"key": {"password": "x"}}}}}},
            "is a secret: put it into a Secret under SPILLWAY_REGISTRY__OPTIONS",
        ),
        (
            {"settings": {"registry": {"options": {"basic": {"auth": {"user.info": "x"}}}}}},
            "basic.auth.user.info is a secret",
        ),
        (
            {"settings": {"warehouse": {"options": {"aws_secret_access_key": "x"}}}},
            "put it into a Secret under SPILLWAY_WAREHOUSE__OPTIONS",
        ),
        (
            {"settings": {"registry": {"options": {"basic.auth.user.info": "x"}}}},
            "put it into a Secret under SPILLWAY_REGISTRY__OPTIONS",
        ),
    ],
)
def test_what_a_pod_cannot_run_with_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rendered(given)


def test_what_is_harmless_is_no_secret_to_the_chart() -> None:
    rendered({"settings": {"kafka": {"options": dict.fromkeys(_HARMLESS, "x")}}})


# --- sizes --------------------------------------------------------------------------------------


def test_the_limit_is_the_sum_that_is_stated(release: Release, tmp_path: Path) -> None:
    settings = release.settings(tmp_path)
    noted = release.deployment["spec"]["template"]["metadata"]["annotations"]
    parts = {
        name.split("/")[1]: size(value)
        for name, value in noted.items()
        if name.startswith("memory.spillway/")
    }
    state = release.volumes["state"]["emptyDir"]
    resources = release.container["resources"]
    assert state["medium"] == "Memory"
    assert parts["state"] == size(state["sizeLimit"])
    assert size(resources["limits"]["memory"]) == sum(parts.values())
    assert resources["requests"]["memory"] == resources["limits"]["memory"], (
        "state fills it sooner or later: the node must have it"
    )
    assert parts["heap"] == size(LOCAL_HEAP)
    wanted = settings.state.slots * int(settings.state.budget_bytes) * HEADROOM
    assert 0 <= parts["state"] - wanted < 1 << 20
    cores = release.values.get("cores", 2)
    assert parts["workers"] == cores * release.values.get("memoryMi", {}).get("worker", 512) << 20
    disks = [size(v["emptyDir"]["sizeLimit"]) for v in release.volumes.values() if "emptyDir" in v]
    disks.remove(parts["state"])
    assert size(resources["limits"]["ephemeral-storage"]) == sum(disks) + (2 << 30)


@pytest.mark.parametrize(
    "text", ["1GiB", "256 MiB", "1.5GiB", "512mib", "2GB", "100k", "1000000b", "0.1TiB", 123456789]
)
def test_a_budget_is_as_large_as_spillway_reads_it(text: str | int) -> None:
    found = rendered({"settings": {"state": {"budget_bytes": text}}})["Deployment"]
    noted = found["spec"]["template"]["metadata"]["annotations"]["memory.spillway/state"]
    wanted = 2 * TypeAdapter(ByteSize).validate_python(text) * HEADROOM
    assert 0 <= size(noted) - wanted < 1 << 20


def test_doctor_accepts_the_memory(release: Release, tmp_path: Path) -> None:
    """In the pod, beside what it takes itself."""
    settings = release.settings(tmp_path)
    limit = size(release.container["resources"]["limits"]["memory"])
    noted = release.deployment["spec"]["template"]["metadata"]["annotations"]
    check = machine.judge_memory(
        slots=settings.state.slots,
        budget_bytes=int(settings.state.budget_bytes),
        free_bytes=size(release.volumes["state"]["emptyDir"]["sizeLimit"]),
        in_memory=True,
        available_bytes=limit - size(noted["memory.spillway/probe"]),
    )
    assert check.status == "ok", check
    query = load_query(str(tmp_path / settings.query) if "." in settings.query else settings.query)
    assert machine.budget(settings, query, settings.state.slots).status == "ok"


def test_cores_are_the_limits(release: Release, tmp_path: Path) -> None:
    settings = release.settings(tmp_path)
    cores = int(release.container["resources"]["limits"]["cpu"])
    assert cores == release.values.get("cores", 2)
    assert settings.spark.master == f"local[{cores}]"
    slots = release.values.get("settings", {}).get("state", {}).get("slots", cores)
    assert settings.state.slots == slots
    threads = {e["value"] for e in release.container["env"] if e["name"].endswith("_THREADS")}
    assert threads == {str(cores)}


# --- the pod ------------------------------------------------------------------------------------


def test_there_is_one_stream_that_may_end_its_epoch(default: Release) -> None:
    assert default.deployment["spec"]["replicas"] == 1
    assert default.deployment["spec"]["strategy"]["type"] == "Recreate"
    assert STOP_S <= default.pod["terminationGracePeriodSeconds"] < GONE_S
    assert default.container["readinessProbe"]["exec"]["command"] == [
        "spillway",
        "status",
        "--json",
    ]
    assert default.container["args"] == ["spillway", "stream"]


def test_spark_is_encrypted_as_in_compose(default: Release, tmp_path: Path) -> None:
    """But for the secret: with a local master each start makes one up."""
    written = spark_defaults(tmp_path)
    del written["spark.authenticate.secret"]
    text = default.objects["ConfigMap"]["data"]["spark-defaults.conf"]
    assert dict(line.split() for line in text.splitlines()) == written
    folder = next(e["value"] for e in default.container["env"] if e["name"] == "SPARK_CONF_DIR")
    assert default.mounts[folder] is not None
    assert default.mounts[folder]["name"] == "settings"


def test_what_is_written_is_on_a_volume(release: Release, tmp_path: Path) -> None:
    """The root file system is read-only."""
    settings = release.settings(tmp_path)
    places = [settings.state.root, "/srv/var", "/tmp"]
    if "://" not in settings.warehouse.root:
        places.append(settings.warehouse.root)
    else:
        assert "warehouse" not in release.volumes
    for place in places:
        mounts = release.mounts
        assert any(place == mount or place.startswith(f"{mount}/") for mount in mounts), place
    assert release.mounts["/dev/shm"]["name"] == "state"
    for name, volume in release.volumes.items():
        assert volume.get("emptyDir", {"sizeLimit": ""}).get("sizeLimit") is not None, name


def test_the_pod_has_no_privileges(release: Release) -> None:
    pod, container = release.pod["securityContext"], release.container["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert {pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]} == {int(USER)}
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert release.pod["automountServiceAccountToken"] is False
    assert release.objects["ServiceAccount"]["automountServiceAccountToken"] is False


def test_airflow_may_do_what_its_launcher_does_and_no_more(
    default: Release, tmp_path: Path
) -> None:
    asked: list[urllib.request.Request] = []

    def fetch(request: urllib.request.Request) -> bytes:
        asked.append(request)
        return json.dumps({"status": {}}).encode()

    metadata = default.deployment["metadata"]
    launcher = KubernetesLauncher(
        metadata["namespace"], metadata["name"], "https://cluster", tmp_path, fetch
    )
    launcher.is_running()
    launcher.start()
    launcher.stop()
    role = default.objects["Role"]
    needed = set()
    for request in asked:
        group, _, _, namespace, *rest = request.full_url.split("/apis/")[1].split("/")
        resource = "/".join([rest[0], *rest[2:]])
        needed.add((group, resource, rest[1], request.get_method().lower()))
        assert namespace == role["metadata"]["namespace"]
    granted = {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
        for verb in rule["verbs"]
    }
    assert granted == needed
    [subject] = default.objects["RoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "airflow-worker", "namespace": "airflow"}
