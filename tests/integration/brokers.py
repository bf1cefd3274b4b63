"""Several brokers of one cluster, each a node that may be killed and started again; on loopback.

The embedded broker's jars and properties, with replication.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from spillway.kafka import broker as embedded
from spillway.kafka.client import KafkaUnavailable, cluster
from spillway.kafka.properties import HOST, LOG4J, server_properties

START_S = 60.0
HEAP_MB = 256


@dataclass
class Brokers:
    """A cluster of nodes, by their numbers from 1 on."""

    folder: Path
    ports: Mapping[int, tuple[int, int]]
    """For clients, and for the controllers."""
    host: str = HOST
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Of all nodes."""
        return ",".join(f"{self.host}:{port}" for port, _ in self.ports.values())

    def start(self, node: int) -> None:
        """Start a node that does not run; returns at once."""
        home = self.folder / str(node)
        command = [
            *embedded._java(home, HEAP_MB, None),
            "kafka.Kafka",
            str(home / "server.properties"),
        ]
        with (home / "broker.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)

    def kill(self, node: int) -> None:
        """End a node without a word."""
        self.processes[node].kill()
        self.processes.pop(node).wait()

    def stop(self, node: int) -> None:
        """End a node in order: it hands over what it leads."""
        self.processes[node].terminate()
        self.processes.pop(node).wait(60)

    def wait(self, nodes: int = 0, topics: tuple[str, ...] = ()) -> None:
        """Until so many nodes (all) are there, and each partition of these topics has all of its
        replicas in step."""
        until = time.monotonic() + START_S
        while not self._are_there(nodes or len(self.ports), topics):
            if time.monotonic() > until:
                raise AssertionError(
                    "\n".join(
                        (self.folder / str(node) / "broker.log").read_text()[-1500:]
                        for node in self.ports
                    )
                )
            time.sleep(0.2)

    def _are_there(self, nodes: int, topics: tuple[str, ...]) -> bool:
        try:
            with cluster(self.bootstrap, timeout_s=3.0) as view:
                if len(view._admin.describe_cluster()["brokers"]) < nodes:
                    return False
                found = view._admin.describe_topics(list(topics)) if topics else []
                return all(
                    len(part["isr_nodes"]) == len(part["replica_nodes"])
                    for topic in found
                    for part in topic["partitions"]
                )
        except (KafkaUnavailable, KafkaError, OSError, RuntimeError):
            return False

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition."""
        with cluster(self.bootstrap) as view:
            (found,) = view._admin.describe_topics([topic])
            (part,) = [p for p in found["partitions"] if p["partition_index"] == partition]
            return int(part["leader_id"])


@contextlib.contextmanager
def brokers(folder: Path, nodes: int = 3, host: str = HOST) -> Iterator[Brokers]:
    """Start a cluster whose topics have a replica on each node, at an address of this host."""
    numbers = range(1, nodes + 1)
    ports = {node: (embedded.free_port(), embedded.free_port()) for node in numbers}
    found = Brokers(folder, ports, host)
    cluster_id = embedded._new_cluster_id()
    voters = ",".join(f"{node}@{host}:{port}" for node, (_, port) in ports.items())
    for node, (port, controller) in ports.items():
        home = folder / str(node)
        home.mkdir()
        (home / "log4j2.yaml").write_text(LOG4J)
        own: dict[str, Any] = {
            "node.id": node,
            "controller.quorum.voters": voters,
            "default.replication.factor": nodes,
            "min.insync.replicas": max(nodes - 1, 1),
            # Else a partition goes back to its first leader five minutes later.
            "auto.leader.rebalance.enable": "false",
        }
        text = server_properties(home / "data", port, controller).replace(HOST, host)
        lines = [x for x in text.splitlines() if not x.startswith("controller.quorum.bootstrap")]
        lines += [f"{name}={value}" for name, value in own.items()]
        (home / "server.properties").write_text("\n".join(lines) + "\n")
        java = embedded._java(home, HEAP_MB, None)
        where = str(home / "server.properties")
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", where],
            check=True,
            capture_output=True,
        )
    try:
        for node in numbers:
            found.start(node)
        found.wait()
        yield found
    finally:
        for process in found.processes.values():
            process.kill()
        for process in found.processes.values():
            process.wait()
