"""A day on hosts that are really several: a standalone cluster across them, Kafka, the object store
and the driver on the front (`tests.hosts`).

Nothing is shared but Kafka and the object store: each host has a `/dev/shm` of its own for state,
under one path. (The folders of Spark's logs are this machine's; no job reads them.)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.kafka.broker import free_port
from spillway.kafka.client import cluster as kafka_cluster
from tests.hosts import FRONT, NEEDED, Network, hosts, refusal
from tests.integration.brokers import brokers
from tests.integration.day import STREAMS, Day, end_group, wait_for
from tests.integration.standalone import Cluster, standalone
from tests.missing import without
from tests.s3_server import S3Server, s3_server
from tests.scrape import Samples, scrape, total

SESSION = "2026-01-05"
MIB = 1 << 20


class StoreOfFront(S3Server):
    """Its tables are fetched by a process of their own: the library's threads of this one may have
    begun in another network."""

    def __init__(self, port: int) -> None:
        super().__init__(port, FRONT)

    @property
    def options(self) -> dict[str, str]:
        """With more patience, for a link that is cut or loses packets."""
        return super().options | {"timeout": "10s", "retry_timeout": "60s"}

    def copied(self, name: str, here: Path) -> None:
        """As everywhere."""
        code = (
            "import sys; from pathlib import Path; from tests.s3_server import S3Server; "
            "S3Server(int(sys.argv[1]), sys.argv[2]).copied(sys.argv[3], Path(sys.argv[4]))"
        )
        port = self.endpoint.rpartition(":")[2]
        subprocess.run([sys.executable, "-c", code, port, FRONT, name, str(here)], check=True)


@dataclass
class Hosted:
    """A day, its cluster and the hosts below."""

    day: Day
    cluster: Cluster
    network: Network
    listen: str
    stream: subprocess.Popen[str] | None = None

    def figures(self) -> Samples:
        """What the running stream serves; empty while it serves nothing."""
        return scrape(self.listen)

    def rows(self) -> float:
        """Rows that the running stream has read."""
        return total(self.figures(), "spillway_rows_total")

    def start(self) -> None:
        """Start the stream; it ends by itself when the session is sealed."""
        self.stream = self.day.start("stream", "--until-sealed", SESSION)

    def read(self, rows: int, timeout_s: float = 120) -> None:
        """Wait until so many rows have been read in all."""
        stream = self.stream
        assert stream is not None

        def there() -> bool:
            assert stream.poll() is None, f"the stream has ended\n{self.day.tail()}"
            return self.rows() >= rows

        try:
            wait_for(there, timeout_s, f"{rows} rows are read", every_s=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.day.tail()}") from None

    def journaled(self) -> int:
        """Rows that the journal has, where it is in a folder."""
        epochs = self.day.journal.epochs()
        return sum(sum(ends) for ends in epochs[-1]["end"].values()) if epochs else 0

    def ask(self, *arguments: str) -> None:
        """Ask for an adaptation."""
        code, text = self.day.output("rebalance", *arguments, "--reason", "test")
        assert code == 0, text

    def log(self) -> str:
        """What the day's commands have said so far, as an operator sees it."""
        return (self.day.folder / "log.txt").read_text()

    def finish(self) -> None:
        """Seal while the stream runs, wait for its end, clean up, prove."""
        assert self.stream is not None
        self.day.ok("seal", "--session", SESSION)
        assert self.stream.wait(120) == 0, self.day.tail()
        commands = ("cleanup", "--session", SESSION, "--then", "verify", "--session", SESSION)
        self.day.ok(*commands, SPILLWAY_SPARK__MASTER="local[2]")


@contextlib.contextmanager
def two_hosts(
    folder: Path,
    spark_env: dict[str, str],
    *,
    loss: float = 0.0,
    of_worker: dict[str, str] | None = None,
    spark: dict[str, str] | None = None,
    topics: Mapping[str, str] | None = None,
    partitions: int = 2,
    memory: str = "1g",
    stored: bool = True,
    **of_day: Any,
) -> Iterator[Hosted]:
    """A cluster across `host-a` and `host-b`, and a day on it.

    `loss`: share of the packets of host-b that gets lost; `of_worker`: environment of its worker.
    `spark`: Spark's options beside; `memory`: of each executor. `stored`: the warehouse is in the
    object store, else in a folder that all see. Where no hosts can be made, see `without`.
    """
    if why := refusal():
        without(NEEDED, why)
    named = topics or {stream: stream for stream in STREAMS}
    env = {name: text for name, text in spark_env.items() if name != "SPARK_LOCAL_IP"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without("SPARK_LOCAL_IP"))
        network = stack.enter_context(hosts(folder, "host-a", "host-b", loss={"host-b": loss}))
        (folder / "kafka").mkdir()
        kafka = stack.enter_context(brokers(folder / "kafka", 1, FRONT))
        store = stack.enter_context(s3_server(FRONT))
        made = stack.enter_context(
            standalone(folder / "cluster", env, network=network, options=spark)
        )
        made.memory = memory
        made.start_worker("host-a")
        made.start_worker("host-b", **(of_worker or {}))
        with kafka_cluster(kafka.bootstrap) as view:
            view.create_topics(dict.fromkeys(named.values(), partitions), None)
        listen = f"127.0.0.1:{free_port()}"
        settings = {"METRICS__LISTEN": listen, **of_day.pop("extra", {})}
        front_store = StoreOfFront(int(store.endpoint.rpartition(":")[2]))
        day = Day(
            folder / "day",
            kafka.bootstrap,
            named,
            made.env,
            master=made.url,
            partitions=partitions,
            store=front_store if stored else None,
            through=network.front.words(),
            extra=settings,
            **of_day,
        )
        found = Hosted(day, made, network, listen)
        try:
            yield found
        finally:
            if found.stream is not None:
                end_group(found.stream)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """This process without a variable, which names an address of other networks."""
    before = os.environ.pop(name, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
