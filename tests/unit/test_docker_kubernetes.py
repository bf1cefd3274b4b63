"""The Kubernetes manifest: valid, sized with the arithmetic that it states, and no more rights
than are used."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from spillway.stream.session import LOCAL_HEAP
from spillway_airflow.launchers import GONE_S, STOP_S, KubernetesLauncher
from spillway_schemas.settings import Settings, load_settings
from tests.docker_files import (
    HEADROOM,
    MANIFEST,
    USER,
    manifest,
    size,
    spark_defaults,
    version,
)

OBJECTS = manifest()
DEPLOYMENT = OBJECTS["Deployment"]
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
VOLUMES: dict[str, dict[str, Any]] = {each["name"]: each for each in POD["volumes"]}
MOUNTS = {each["mountPath"]: VOLUMES[each["name"]] for each in CONTAINER["volumeMounts"]}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "spillway.toml"
    file.write_text(OBJECTS["ConfigMap"]["data"]["spillway.toml"])
    return load_settings(file, environ={each["name"]: each["value"] for each in CONTAINER["env"]})[
        0
    ]


@pytest.mark.parametrize("release", ["1.31", "1.34", "1.37"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_it_keeps_the_api(kind: str, release: str) -> None:
    assert kubernetes_validate.validate(OBJECTS[kind], release, strict=True) == release


def test_objects_name_each_other() -> None:
    names = {kind: each["metadata"]["name"] for kind, each in OBJECTS.items()}
    spaces = {each["metadata"].get("namespace") for each in OBJECTS.values()} - {None}
    assert spaces == {names["Namespace"]}
    assert VOLUMES["settings"]["configMap"]["name"] == names["ConfigMap"]
    claim = VOLUMES["warehouse"]["persistentVolumeClaim"]
    assert claim["claimName"] == names["PersistentVolumeClaim"]
    assert POD["serviceAccountName"] == names["ServiceAccount"]
    assert OBJECTS["RoleBinding"]["roleRef"]["name"] == names["Role"]
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert CONTAINER["image"] == f"spillway:{version()}"


def test_there_is_one_stream_that_may_end_its_epoch() -> None:
    assert DEPLOYMENT["spec"]["replicas"] == 1
    assert DEPLOYMENT["spec"]["strategy"]["type"] == "Recreate"
    assert STOP_S <= POD["terminationGracePeriodSeconds"] < GONE_S
    assert CONTAINER["readinessProbe"]["exec"]["command"] == ["spillway", "status", "--json"]


def test_the_limit_is_the_sum_that_is_stated(settings: Settings) -> None:
    noted = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    parts = {name.split("/")[1]: size(value) for name, value in noted.items()}
    state = VOLUMES["state"]["emptyDir"]
    assert state["medium"] == "Memory"
    room = size(state["sizeLimit"])
    limit = size(CONTAINER["resources"]["limits"]["memory"])
    assert limit == sum(parts.values()) + room
    assert (
        CONTAINER["resources"]["requests"]["memory"] == (CONTAINER["resources"]["limits"]["memory"])
    ), "state fills it sooner or later: the node must have it"
    assert parts["heap"] == size(LOCAL_HEAP)
    assert settings.state.slots * int(settings.state.budget_bytes) * HEADROOM <= room
    written = re.findall(r"^ +# +[+=]? +(\d+Mi)\b", MANIFEST.read_text(), re.M)
    assert [size(each) for each in written] == [room, *parts.values(), limit]


def test_cores_are_the_limits(settings: Settings) -> None:
    cores = int(CONTAINER["resources"]["limits"]["cpu"])
    assert settings.spark.master == f"local[{cores}]"
    assert settings.state.slots == cores
    assert {e["value"] for e in CONTAINER["env"] if e["name"].endswith("_THREADS")} == {str(cores)}


def test_spark_is_encrypted_as_in_compose(tmp_path: Path) -> None:
    """But for the secret: with a local master each start makes one up."""
    written = spark_defaults(tmp_path)
    del written["spark.authenticate.secret"]
    text = OBJECTS["ConfigMap"]["data"]["spark-defaults.conf"]
    assert dict(line.split() for line in text.splitlines()) == written
    folder = next(e["value"] for e in CONTAINER["env"] if e["name"] == "SPARK_CONF_DIR")
    assert MOUNTS[folder] is VOLUMES["settings"]


def test_what_is_written_is_on_a_volume(settings: Settings) -> None:
    """The root file system is read-only."""
    for place in (settings.warehouse.root, settings.state.root, "/srv/var", "/tmp"):
        assert any(place == mount or place.startswith(f"{mount}/") for mount in MOUNTS), place
    assert MOUNTS["/dev/shm"] is VOLUMES["state"]
    for name, volume in VOLUMES.items():
        assert volume.get("emptyDir", {"sizeLimit": ""}).get("sizeLimit") is not None, name


def test_the_pod_has_no_privileges() -> None:
    pod, own = POD["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert {pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]} == {int(USER)}
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False


def test_airflow_may_do_what_its_launcher_does_and_no_more(tmp_path: Path) -> None:
    asked: list[urllib.request.Request] = []

    def fetch(request: urllib.request.Request) -> bytes:
        asked.append(request)
        return json.dumps({"status": {}}).encode()

    metadata = DEPLOYMENT["metadata"]
    launcher = KubernetesLauncher(
        metadata["namespace"], metadata["name"], "https://cluster", tmp_path, fetch
    )
    launcher.is_running()
    launcher.start()
    launcher.stop()
    needed = set()
    for request in asked:
        group, _, _, namespace, *rest = request.full_url.split("/apis/")[1].split("/")
        resource = "/".join([rest[0], *rest[2:]])
        needed.add((group, resource, rest[1], request.get_method().lower()))
        assert namespace == OBJECTS["Role"]["metadata"]["namespace"]
    granted = {
        (group, resource, name, verb)
        for rule in OBJECTS["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
        for verb in rule["verbs"]
    }
    assert granted == needed
