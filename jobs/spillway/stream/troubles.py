"""What machines do to a stream: slow disks, memory that runs out, wrong clocks. Said with figures.

None is an error of its own. A slow disk makes every epoch longer, and nothing else; a process that
the kernel kills for want of memory leaves no word but a counter of its control group; a clock makes
times wrong, and no result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from spillway.readmodel.clocks import clocks_text, wrong_clocks
from spillway.readmodel.disks import SLOW_S
from spillway.report.words import bytes_text, times_text
from spillway_schemas.journal import SlotReport, SlotTotals
from spillway_schemas.memory import killed_for_memory, most_memory

EVERY_S = 60.0
"""How often a disk that stays slow is named."""


class MemoryWatch:
    """Processes that the kernel has killed because memory had run out, of this control group."""

    def __init__(self) -> None:
        self._known = killed_for_memory()

    def told(self) -> str:
        """Those since it was made, or asked last, in words; empty: there are none."""
        before, self._known = self._known, killed_for_memory()
        return memory_text(self._known - before) if self._known > before else ""


def memory_text(killed: int) -> str:
    """That the kernel has killed so many processes, and what to do."""
    return (
        f"memory ran out: the kernel has killed a process {times_text(killed, 'time')} (all of "
        f"this control group may have {bytes_text(most_memory())}, state on tmpfs included). Lower "
        "state.budget_bytes, or give it more memory"
    )


class ClockWatch:
    """Hosts' clocks, and what people were told of them."""

    def __init__(self) -> None:
        self._least_ms: dict[str, int] = {}
        """By host whose clock is wrong, how far at least, whichever way."""

    def told(self, slots: Iterable[SlotTotals], took_ms: int) -> list[str]:
        """What to tell after an epoch whose job took so long: once when a clock is found wrong, and
        once when it has been set. One that a slow job hides is wrong still, and of a host that did
        not take part nothing is known."""
        slots = list(slots)
        wrong, texts = wrong_clocks(slots), []
        most_ms: dict[str, int] = {}
        for each in slots:
            most_ms[each.host] = max(most_ms.get(each.host, 0), abs(each.clock_ahead_ms) + took_ms)
        for host in self._least_ms.keys() & most_ms.keys():
            if most_ms[host] < self._least_ms[host]:  # it is not where it was
                self._least_ms[host] = 0
        if wrong.keys() - self._least_ms.keys():
            texts.append(clocks_text(wrong))
        for host, ms in wrong.items():
            self._least_ms[host] = max(abs(ms), self._least_ms.get(host, 0))
        if right := sorted(host for host, least_ms in self._least_ms.items() if not least_ms):
            texts.append(f"the clocks of {', '.join(right)} and of the driver agree again")
            for host in right:
                del self._least_ms[host]
        return texts


class DiskWatch:
    """What an epoch writes, and how long that takes."""

    def __init__(self) -> None:
        self._slow: dict[str, tuple[float, str]] = {}
        """By disk: seconds and what took them, the longest of the epoch."""
        self._told_at: dict[str, float] = {}
        self._commits_s = 0.0

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Time what the block writes to the tables' disk."""
        began = time.monotonic()
        yield
        took_s = time.monotonic() - began
        self._commits_s += took_s
        self._note("tables (warehouse.root)", took_s, what)

    def commits_s(self) -> float:
        """Seconds of all `writing` since this was asked last."""
        took_s, self._commits_s = self._commits_s, 0.0
        return took_s

    def stepped(self, reports: Iterable[SlotReport]) -> None:
        """Take the times that slots have measured on the disks of their state."""
        for report in reports:
            if report.totals is not None:
                took = report.totals.seconds.get("manifest", 0.0)
                self._note("state (state.root)", took, f"the manifest of slot {report.slot}")

    def told(self) -> list[str]:
        """Which disks were slow since it was asked last; of each once in `EVERY_S`."""
        slow, self._slow = self._slow, {}
        now = time.monotonic()
        due = [d for d in slow if now - self._told_at.get(d, float("-inf")) >= EVERY_S]
        self._told_at |= dict.fromkeys(due, now)
        return [
            f"the disk of the {disk} is slow: {slow[disk][1]} took {slow[disk][0]:.1f} s. Every "
            "epoch waits for it; `spillway doctor` measures it"
            for disk in due
        ]

    def _note(self, disk: str, took_s: float, what: str) -> None:
        if took_s > max(SLOW_S, self._slow.get(disk, (0.0, ""))[0]):
            self._slow[disk] = took_s, what
