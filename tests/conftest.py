"""Fixtures that start the real servers: one Kafka broker a session, Spark's surroundings.

Everything binds to loopback on ports that the system gives, keeps its files in pytest's temporary
folders, and is ended by process id.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from spillway.jars import is_installed
from spillway.kafka import broker as kafka_broker
from spillway.kafka.client import KafkaCluster
from tests.azure_server import azure_server
from tests.gcs_server import gcs_server
from tests.order import long_files_first
from tests.s3_server import S3Server, s3_server
from tests.slow import LIST
from tests.store_server import StoreServer

# Airflow makes its folder when it is imported: never one of the person who runs the tests.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="spillway-airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile(
    "any machine",
    parent=settings.default,
    deadline=None,
    max_examples=settings.default.max_examples // 2,
)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported now stays to the end: no search for garbage goes through it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


SLOW = frozenset(LIST.read_text().splitlines())
"""Tests that `make test` runs, and `make check` does not."""
SLOW_FILES = frozenset(test.partition("::")[0] for test in SLOW)
FAST = "not server and not soak"
REST = "(server or slow) and not soak"
"""How the lane of `make check` begins, which mutants meet with the slow tests, too; and the lane
that `make test` runs after it."""
ALL_ELSEWHERE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.(server|soak)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which the lane takes nothing is not imported: each worker imports all of them."""
    lane: str = config.option.markexpr
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    if lane.startswith(FAST):
        return True if ALL_ELSEWHERE.search(collection_path.read_text()) else None
    if lane != REST:
        return None
    text = collection_path.read_text()
    name = collection_path.relative_to(config.rootpath).as_posix()
    return None if "server" in text or "tests.lanes" in text or name in SLOW_FILES else True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark what takes long, before it is chosen by marks; then put long files first."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)
    yield
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = long_files_first(items, [each.nodeid.partition("::")[0] for each in items], workers)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """A command hides the secrets of all settings that its process has read: here those of other
    tests, whose words would be missing in this one's output."""
    yield
    if (terminal := sys.modules.get("spillway.commands.terminal")) is not None:
        terminal._secrets.clear()


@pytest.fixture(scope="session")
def jars() -> None:
    """The locked jars are there."""
    if not is_installed():
        pytest.fail("the jars of jars.lock are not installed: run 'make setup'")


@pytest.fixture(scope="session")
def broker(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real broker for the whole session: its `host:port`."""
    folder = tmp_path_factory.mktemp("kafka")
    status = kafka_broker.start(
        folder, kafka_broker.free_port(), controller_port=kafka_broker.free_port()
    )
    try:
        yield status.bootstrap
    finally:
        kafka_broker.stop(folder)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for the whole session."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[StoreServer]:
    """Azure's emulator for the whole session."""
    with azure_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[StoreServer]:
    """A server that speaks Google Cloud Storage's protocol, for the whole session."""
    with gcs_server() as server:
        yield server


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """The object store that `tests.lanes.on_every_store` names; no fault outlives the test."""
    found: StoreServer = request.getfixturevalue(request.param)
    found.fail()
    yield found
    found.fail()


@pytest.fixture
def cluster(broker: str) -> Iterator[KafkaCluster]:
    """An admin connection to the session's broker."""
    view = KafkaCluster(broker)
    try:
        yield view
    finally:
        view.close()


TopicMaker = Callable[..., dict[str, str]]


@pytest.fixture
def topics(cluster: KafkaCluster) -> Iterator[TopicMaker]:
    """Make topics of fresh names: `topics("stock", "volume", partitions=3) -> {name: topic}`.

    Each name gets a topic of its own for this test; `configs` are Kafka's topic settings.
    """
    made: list[str] = []

    def make(
        *names: str, partitions: int = 4, configs: dict[str, str] | None = None
    ) -> dict[str, str]:
        tag = uuid.uuid4().hex[:8]
        fresh = {name: f"{name}-{tag}" for name in names}
        cluster.create_topics(dict.fromkeys(fresh.values(), partitions), configs)
        made.extend(fresh.values())
        return fresh

    yield make
    left = set(made) & set(cluster.existing_topics())
    if left:
        cluster.delete_topics(left)


@pytest.fixture(scope="session")
def spark_env(jars: None) -> Iterator[dict[str, str]]:
    """Surroundings of every Spark process, set for this one and returned for those it starts."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    wanted = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Spark lives for seconds here: the optimising compiler would cost more than it gives.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        "SPARK_HOME": str(Path(spec.origin).parent),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield wanted
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="module")
def no_watch_is_left() -> Iterator[None]:
    """Ends threads that look at a warehouse: one in native code while the interpreter ends would
    crash it."""
    yield
    from spillway.live import watch

    with pytest.MonkeyPatch.context() as patch:
        for name in ("IDLE_S", "AGAIN_S", "SHARE"):
            patch.setattr(watch, name, 0.0)
        for thread in threading.enumerate():
            if thread.name == "spillway-page":
                thread.join(60)
                assert not thread.is_alive()
