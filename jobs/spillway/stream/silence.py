"""Hosts that do not answer while a job waits for them: who they are, and since when; and clusters
that give no executor at all.

Spark itself says nothing for a minute or two (`spark.worker.timeout`, `spark.network.timeout`), and
then only that an executor is gone. So while a job takes long, the driver tries to connect to the
executors that slots are pinned to. Nothing is decided by it: people are told, once when a host
falls silent and once when it answers again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HOST_SILENT_S = 10.0
"""So long a job may take before anybody is asked, and a host may be silent before it is told of."""
HOST_ANSWER_S = 1.0
"""How long a host has to accept a connection."""

Address = tuple[str, int]


def answers(address: Address) -> bool:
    """Whether a host accepts a connection, or refuses it: both are answers."""
    try:
        socket.create_connection(address, HOST_ANSWER_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


@dataclass
class SilentHosts:
    """What is known of the hosts that one job waits for."""

    last_s: dict[str, float] = field(default_factory=dict)
    """By host, when it was found to answer last."""
    told: set[str] = field(default_factory=set)
    """Of which it was said that they are silent."""

    def heard(self, hosts: Mapping[str, bool], now_s: float) -> list[str]:
        """What to tell people. `hosts`: whether each answers, at `now_s` of a monotonic clock."""
        texts = []
        for host, here in hosts.items():
            since_s = now_s - self.last_s.setdefault(host, now_s)
            if here:
                self.last_s[host] = now_s
                if host in self.told:
                    self.told.remove(host)
                    texts.append(f"{host} answers again, after {since_s:.0f} s")
            elif since_s >= HOST_SILENT_S and host not in self.told:
                self.told.add(host)
                texts.append(
                    f"{host} has not answered for {since_s:.0f} s, and the epoch waits for it: see "
                    "whether it runs, and its network. Nothing is lost. The stream goes on once it "
                    "answers; if it does not, Spark gives it up after spark.network.timeout "
                    "(120 s by default) or spark.worker.timeout of a standalone master (60 s), and "
                    "the epoch runs again on the other hosts"
                )
        return texts


def addresses(executors: Iterable[str]) -> dict[str, Address]:
    """By host, where one of its executors listens. `executors`: `host:port`, as Spark says it."""
    found = {}
    for each in executors:
        host, _, port = each.rpartition(":")
        found[host] = (host.strip("[]"), int(port))
    return found


def nobody_came(master: str, driver_host: str, waited_s: float) -> str:
    """What to tell people while a cluster gives no executors.

    `driver_host`: the address that executors are told of the driver.
    """
    told = (
        f"No executor has registered with {master} within {waited_s:.0f} s, and the stream waits "
        "for one: see the master's web page and the workers' logs"
    )
    if driver_host == "localhost" or driver_host.startswith("127."):
        return (
            f"{told}. Executors on other hosts cannot reach the driver at {driver_host}: unset "
            "SPARK_LOCAL_IP, or set spark.driver.host in spark-defaults.conf"
        )
    return f"{told}. Executors must reach the driver at {driver_host}, on every port"
