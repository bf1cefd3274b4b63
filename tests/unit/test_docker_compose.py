"""compose.yaml: valid, closed to the outside, sized, and every name in it exists."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillway.decode import compile_streams
from spillway.jars import lock_file, parse_lock
from spillway.kafka.properties import server_properties
from spillway.stream.session import LOCAL_HEAP
from spillway_schemas.query import load_query
from spillway_schemas.settings import Settings, load_settings
from tests.docker_files import (
    COMPOSE,
    DOCKER,
    HEADROOM,
    ROOT,
    airflow_options,
    compose,
    size,
    spark_defaults,
    version,
)

FILE = compose()
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
WORKERS = {name: each for name, each in SERVICES.items() if name.startswith("spark-worker")}
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("spillway")}
AIRFLOW = {name: each for name, each in SERVICES.items() if "airflow:" in each["image"]}
TASKS = SERVICES["airflow-scheduler"]

JVM = 384 << 20
"""Memory of a JVM besides its heap, at least."""
PYTHON = 256 << 20
"""Memory of one Python with pyarrow, at least."""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(DOCKER / "spillway.toml", environ={})[0]


def environment(service: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = service.get("environment", {})
    assert all(isinstance(value, str) for value in found.values()), "YAML made another type of it"
    return found


def words(service: dict[str, Any]) -> Iterator[str]:
    """Everything that a service runs or is told."""
    for key in ("entrypoint", "command"):
        yield from service.get(key, ())
    yield from service.get("healthcheck", {}).get("test", ())
    yield from environment(service).values()


def options(command: list[str]) -> dict[str, str]:
    """`--name value` of a command: Spark's own programs do not take `--name=value`."""
    assert not any(word.startswith("--") and "=" in word for word in command)
    named = (at for at, word in enumerate(command) if word.startswith("--"))
    return {command[at].removeprefix("--"): command[at + 1] for at in named}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SERVICES[request.param]


# --- the file --------------------------------------------------------------------------------


def test_it_keeps_the_compose_specification() -> None:
    check = [Path(sys.executable).with_name("check-jsonschema")]
    done = subprocess.run(
        [*check, "--builtin-schema", "vendor.compose-spec", COMPOSE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_are_of_exact_versions() -> None:
    broker = next(j for j in parse_lock(lock_file().read_text()) if j.name == "kafka_2.13")
    for name, each in SERVICES.items():
        image, _, tag = each["image"].partition(":")
        assert re.match(r"\d+\.\d+", tag), name
        if image.startswith("spillway"):
            assert tag == version()
            assert each["pull_policy"] == "never", "a stranger's image may have this name"
        if image == "apache/kafka":
            assert tag == broker.revision, "tests run with another version"
    made = {each["image"]: each["build"]["target"] for each in SERVICES.values() if "build" in each}
    assert made == {f"spillway:{version()}": "spillway", f"spillway-airflow:{version()}": "airflow"}


# --- closed ----------------------------------------------------------------------------------


def test_ports_are_open_to_this_machine_alone(service: dict[str, Any]) -> None:
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "network_mode" not in service


def test_services_have_no_privileges(service: dict[str, Any]) -> None:
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys()
    assert service.get("user", "") not in ("root", "0")
    # Named volumes only: nothing of this machine, and not the engine's socket.
    assert all(volume.split(":")[0] in FILE["volumes"] for volume in service.get("volumes", ()))


def test_secrets_are_in_files(service: dict[str, Any], tmp_path: Path) -> None:
    for name, value in environment(service).items():
        if re.search(r"PASSWORD|SECRET|FERNET|SQL_ALCHEMY_CONN", name):
            assert name.endswith(("_FILE", "_CMD")), name
            assert value.startswith(("/", "cat /run/secrets/")), name
    read = set(re.findall(r"/run/secrets/(\w+)", " ".join(words(service))))
    given = service.get("secrets", ())
    assert read == {each for each in given if isinstance(each, str)}
    assert {each if isinstance(each, str) else each["source"] for each in given} <= (
        FILE["secrets"].keys()
    )


def test_make_secrets_makes_them_all(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    script = [DOCKER / "make-secrets", folder]
    subprocess.run(script, check=True, capture_output=True)
    made = {each.name: each.read_text() for each in folder.iterdir()}
    assert made.keys() == FILE["secrets"].keys()
    assert {Path(each["file"]).name for each in FILE["secrets"].values()} == made.keys()
    assert not any(text != text.strip() for text in made.values()), "a newline would be part of it"
    password = made["postgres_password"]
    assert f"://airflow:{password}@postgres:5432/airflow" in made["airflow_database_url"]
    assert len(base64.urlsafe_b64decode(made["airflow_fernet_key"])) == 32
    assert len(json.loads(made["airflow_passwords"])["admin"]) >= 20
    assert len(made["airflow_jwt_secret"]) >= 64, "HS512 asks for as many"
    assert folder.stat().st_mode & 0o777 == 0o700
    subprocess.run(script, check=True, capture_output=True)
    assert made == {each.name: each.read_text() for each in folder.iterdir()}, "made again"
    assert "docker/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_spark_is_closed_and_encrypted(tmp_path: Path) -> None:
    """All of it reads one file, with the secret in it; no command line and no variable has one."""
    options = spark_defaults(tmp_path)
    assert len(options.pop("spark.authenticate.secret")) >= 43
    assert options == {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.saslFallback": "false",
        "spark.io.encryption.enabled": "true",
        "spark.io.encryption.keySizeBits": "256",
    }
    assert len(spark_defaults(tmp_path / "other")["spark.authenticate.secret"]) >= 43
    for name in ("spark-master", *WORKERS, "stream"):
        each = SERVICES[name]
        assert each["secrets"] == [{"source": "spark_defaults", "target": "spark-defaults.conf"}]
        assert environment(each)["SPARK_CONF_DIR"] == "/run/secrets"
    assert not any("spark.authenticate" in word for each in OURS.values() for word in words(each))


# --- healthy ---------------------------------------------------------------------------------


def test_services_are_watched_or_run_once(service: dict[str, Any]) -> None:
    once = service["restart"] == "no"
    assert once != ("healthcheck" in service)
    if not once:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


def test_what_runs_once_is_waited_for_by_what_runs_on() -> None:
    """Otherwise `up --wait` takes its end for a failure."""
    once = {name for name, each in SERVICES.items() if each["restart"] == "no"}
    on = [each for name, each in SERVICES.items() if name not in once]
    assert once == {"topics", "airflow-init"}
    assert once <= {need for each in on for need in each.get("depends_on", {})}


def test_dependencies_are_waited_for(service: dict[str, Any]) -> None:
    for name, need in service.get("depends_on", {}).items():
        once = SERVICES[name]["restart"] == "no"
        wanted = "service_completed_successfully" if once else "service_healthy"
        assert need["condition"] == wanted, name


def test_programs_of_ours_are_in_the_image(service: dict[str, Any]) -> None:
    copied = (DOCKER / "Dockerfile").read_text()
    for path in re.findall(r"/opt/spillway/(\S+\.py)", " ".join(words(service))):
        assert path in copied, path


# --- names -----------------------------------------------------------------------------------


def test_settings_exist(service: dict[str, Any]) -> None:
    load_settings(DOCKER / "spillway.toml", environ=environment(service))  # refuses unknown names


def test_options_of_airflow_exist(service: dict[str, Any]) -> None:
    known = airflow_options()
    page = (ROOT / "docs" / "airflow.md").read_text()
    own = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.M))))
    for name in environment(service):
        if not name.startswith("AIRFLOW__"):
            continue
        _, section, option = name.lower().split("__")
        if section == "spillway":
            assert option in own, name
        elif option.endswith("_cmd"):
            assert known[section, option.removesuffix("_cmd")].get("sensitive"), name
        else:
            assert (section, option) in known, name


def test_the_broker_is_set_up_as_the_embedded_one() -> None:
    lines = server_properties(Path("/data"), 9092, 9093).splitlines()
    embedded = dict(line.split("=", 1) for line in lines)
    given = environment(SERVICES["kafka"])
    ours = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in given.items()
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS"
    }
    places = {name for name in ours if "listener" in name or "quorum" in name or name == "log.dirs"}
    both = ours.keys() & embedded.keys() - places
    assert {n: ours[n] for n in both} == {n: embedded[n] for n in both}
    assert ours.keys() - places <= embedded.keys()
    assert len(base64.b64decode(given["CLUSTER_ID"] + "==")) == 16


def test_the_topics_are_the_querys(settings: Settings) -> None:
    topics = {stream.topic for stream in compile_streams(load_query(settings.query))}
    script = SERVICES["topics"]["command"][0]
    made = re.search(r"for topic in ([^;]+);", script)
    assert made
    assert set(made[1].split()) == topics


# --- shared and sized ------------------------------------------------------------------------


def test_everybody_has_the_settings_and_the_warehouse(settings: Settings) -> None:
    for name, each in OURS.items():
        (mounted,) = each["configs"]
        assert mounted["target"] == "/etc/spillway/spillway.toml", name
        if name != "spark-master":
            where = {volume.split(":")[1] for volume in each["volumes"]}
            assert settings.warehouse.root in where, name
    assert FILE["configs"]["settings"]["file"] == "./spillway.toml"
    assert TASKS["environment"]["AIRFLOW__SPILLWAY__CONFIG"] == "/etc/spillway/spillway.toml"


def test_the_settings_name_these_services(settings: Settings) -> None:
    kafka = environment(SERVICES["kafka"])["KAFKA_ADVERTISED_LISTENERS"]
    assert f"//{settings.kafka.bootstrap_servers}" in kafka
    default = load_settings(environ={})[0].kafka.bootstrap_servers
    assert f"//{default}" in kafka, "a producer on this machine needs no settings"
    assert f"{default}:19092" in SERVICES["kafka"]["ports"]
    for each in WORKERS.values():
        assert settings.spark.master == each["command"][-1]
        assert options(each["command"])["host"] == each["hostname"]
    assert f"{SERVICES['spark-master']['hostname']}:7077" in settings.spark.master


def test_airflow_starts_and_stops_the_stream_through_a_folder() -> None:
    run = SERVICES["stream"]
    assert run["command"][-1] == "run"
    assert "service:/srv/service" in run["volumes"]
    assert "service:/srv/service" in TASKS["volumes"]
    for verb in ("start", "stop", "status"):
        assert TASKS["environment"][f"AIRFLOW__SPILLWAY__{verb.upper()}"].endswith(f".py {verb}")


def test_state_fits_a_worker_that_is_alone(settings: Settings) -> None:
    needed = settings.state.slots * int(settings.state.budget_bytes) * HEADROOM
    assert settings.state.root.startswith("/dev/shm/")
    cores = 0
    for name, each in WORKERS.items():
        given = options(each["command"])
        cores += int(given["cores"])
        assert size(each["shm_size"]) >= needed, name
        daemon = size(environment(each)["SPARK_DAEMON_MEMORY"])
        heaps = size(given["memory"]) + daemon + 2 * JVM
        workers = (1 + int(given["cores"])) * PYTHON
        assert size(each["mem_limit"]) >= size(each["shm_size"]) + heaps + workers, name
    assert settings.state.slots == cores, "one slot a core"


def test_memory_is_limited(service: dict[str, Any]) -> None:
    limit = size(service["mem_limit"])
    assert limit >= size(service.get("shm_size", "64m")) + (256 << 20)
    heap = re.search(r"-Xmx(\w+)", environment(service).get("KAFKA_HEAP_OPTS", "-Xmx0m"))
    assert heap
    assert limit >= size(heap[1]) + JVM


def test_the_tasks_container_has_room_for_a_spark_of_its_own() -> None:
    cores = int(re.findall(r"local\[(\d+)\]", environment(TASKS)["SPILLWAY_SPARK__MASTER"])[0])
    spark = size(LOCAL_HEAP) + JVM + (1 + cores) * PYTHON
    assert size(TASKS["mem_limit"]) >= spark + (1 << 30), "and Airflow's own processes"
