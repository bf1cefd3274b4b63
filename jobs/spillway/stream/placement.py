"""Which host each slot is pinned to, and what is done about hosts that go or fall silent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError

from spillway.stream.silence import HOST_SILENT_S, SilentHosts, addresses, answers

HOSTS_LOOK_S = 1.0
"""How often it is looked whether the hosts are there while a job runs."""
SETTLED_S = 1.5
"""Executors register one after another: so long without a new one means that all are there."""


@dataclass
class Placement:
    """Which host each slot is pinned to. On `local[...]` there is but one, and no pins."""

    spark: Any
    local: bool
    hosts: dict[int, str] = field(default_factory=dict)
    most_executors: int = 0
    away_s: float = 60.0
    """How long a pinned host may be without an executor while a job runs."""

    def executors(self) -> list[str]:
        """Hosts of the executors that are alive, one entry an executor."""
        alive = [each.rpartition(":")[0] for each in self._listening()]
        self.most_executors = max(self.most_executors, len(alive))
        return alive

    def _listening(self) -> list[str]:
        """Where the executors that are alive listen, as `host:port`, in order."""
        if self.local:
            return []
        found = self.spark.sparkContext._jsc.sc().statusStore().executorList(True)
        summaries = (found.apply(i) for i in range(found.size()))
        return sorted(s.hostPort() for s in summaries if s.id() != "driver")

    def settle(self, wait_s: float) -> None:
        """At the start: wait for the hosts that hold state, and until no more executors come."""
        wanted = {host for host in self.hosts.values() if host}
        until = time.monotonic() + wait_s
        seen, since = 0, time.monotonic()
        while not self.local and time.monotonic() < until:
            alive = self.executors()
            if len(alive) != seen:
                seen, since = len(alive), time.monotonic()
            if seen and wanted <= set(alive) and time.monotonic() - since >= SETTLED_S:
                return
            time.sleep(0.1)

    def wait(self, wait_s: float) -> None:
        """Wait until as many executors are alive as there ever were, or `wait_s` has passed."""
        until = time.monotonic() + wait_s
        while not self.local and time.monotonic() < until:
            if (alive := len(self.executors())) and alive >= self.most_executors:
                return
            time.sleep(0.2)

    def place(self, slots: Iterable[int], unpin: Iterable[int] = ()) -> dict[int, str]:
        """Pin every slot: surviving pins stay, the others go where the fewest are."""
        if self.local:
            return dict.fromkeys(slots, "")
        alive = sorted(set(self.executors()))
        if not alive:
            return dict.fromkeys(slots, "")
        gone = set(unpin)
        kept = {s: h for s, h in self.hosts.items() if h in alive and s not in gone}
        for slot in slots:
            if slot not in kept:
                kept[slot] = min(alive, key=lambda h: (list(kept.values()).count(h), h))
        self.hosts = kept
        return {slot: kept[slot] for slot in slots}

    @contextlib.contextmanager
    def watched(self, cancel: Callable[[], None], tell: Callable[[str], None]) -> Iterator[None]:
        """Cancel the block's job when a host to which slots are pinned stays away too long.

        `tell`: people, of hosts that do not answer while the job waits.

        Spark holds a task back for its host for `spark.locality.wait`. When the host goes it
        usually runs the task elsewhere at once; but not while a task of another pinned host
        waits for a core, and after that it looks again only when an executor comes or goes. A
        job that fails is run again, and its slots are pinned to hosts that are there.
        """
        over = threading.Event()
        silent = SilentHosts()

        def hear(hosts: Iterable[str], enough: threading.Event) -> None:
            for text in silent.heard(self._answers(hosts, enough), time.monotonic()):
                tell(text)

        def watch() -> None:
            here = began = time.monotonic()
            blind = False
            while not over.wait(HOSTS_LOOK_S):
                try:
                    if time.monotonic() - began >= HOST_SILENT_S:
                        hear(self.hosts.values(), over)
                    alive = set(self.executors())
                except (Py4JError, OSError) as error:  # the JVM ends, or has no answer in time
                    if not blind and not over.is_set():
                        tell(
                            f"Spark does not say which hosts are there: {error}. It is asked again"
                        )
                    blind = True
                    here = time.monotonic()  # nobody has seen that one is away
                    continue
                blind = False
                if alive.issuperset(self.hosts.values()):
                    here = time.monotonic()
                elif time.monotonic() - here >= self.away_s:
                    away = ", ".join(sorted(set(self.hosts.values()) - alive))
                    tell(f"{away} has had no executor for {self.away_s:.0f} s: going on without it")
                    cancel()
                    return

        if self.local:
            yield
            return
        watcher = threading.Thread(target=watch, name="placement", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        if silent.told:  # the job has ended between two looks, perhaps because one answered
            with contextlib.suppress(Py4JError, OSError):
                hear(tuple(silent.told), threading.Event())

    def _answers(self, hosts: Iterable[str], enough: threading.Event) -> dict[str, bool]:
        """Whether those of the hosts answer that have an executor. The rest of them are left out
        once it is enough."""
        known, found = addresses(self._listening()), dict[str, bool]()
        for host in sorted(known.keys() & set(hosts)):
            if enough.is_set():
                break
            found[host] = answers(known[host])
        return found
