"""One line an epoch: what `spillway stream` prints while it runs."""

from __future__ import annotations

import re
from collections import Counter

from spillway.protocol.state import JournalState
from spillway.report.words import bytes_text, times_text
from spillway_schemas.journal import Epoch


def in_short(text: str) -> str:
    """A message with the long names of state files cut in the middle: folder and end tell which."""
    return re.sub(r"\b([\w-]{8})[\w-]{24,}(-[\w-]{4,}\.\w+)", r"\1...\2", text)


def start_line(state: JournalState) -> str:
    """The line at the start of a term."""
    return (
        f"term {state.term}: session {state.session.date}, epoch {state.epoch + 1} is next, "
        f"{len(state.groups)} groups on {len(state.slots)} slots"
    )


class RunTally:
    """Rows and results of the epochs of one run."""

    def __init__(self) -> None:
        self._epochs = self._results = 0
        self._rows: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    def add(self, entry: Epoch) -> None:
        """Count one journaled epoch."""
        self._epochs += 1
        self._results += sum(entry.results.values())
        for count in entry.read:
            self._rows[count.topic] += count.rows
            self._rejected[count.topic] += count.rejected

    def line(self) -> str:
        """What a run that reads what Kafka holds ends with."""
        rejected = self._rejected.total()
        quarantined = f" ({rejected:,} quarantined)" if rejected else ""
        return (
            "everything that Kafka held when this began has been read: "
            f"{times_text(self._rows.total(), 'row')}{quarantined} and "
            f"{times_text(self._results, 'result')} in {times_text(self._epochs, 'epoch')}"
        )

    def trouble(self) -> str:
        """Which topics gave nothing but rows that break their contract; empty where none did."""
        bad = [topic for topic, rows in self._rows.items() if 0 < rows == self._rejected[topic]]
        if not bad:
            return ""
        return (
            f"every row of {', '.join(sorted(bad))} breaks its contract. For the reasons: "
            "spillway quarantine list"
        )


def epoch_line(entry: Epoch) -> str:
    """The line of one journaled epoch."""
    rows = sum(count.rows for count in entry.read)
    parts = [
        f"epoch {entry.epoch}:",
        f"{times_text(rows, 'row')},",
        times_text(sum(entry.results.values()), "result"),
    ]
    rejected = sum(count.rejected for count in entry.read)
    if rejected:
        parts.append(f"({rejected:,} quarantined)")
    state = sum(slot.state_bytes for slot in entry.slots)
    budget = sum(slot.budget_bytes for slot in entry.slots)
    parts.append(f"| state {bytes_text(state)} of {bytes_text(budget)}")
    spilled = sum(slot.spilled_bytes for slot in entry.slots)
    if spilled:
        parts.append(f"| spilled {bytes_text(spilled)}, {times_text(len(entry.cuts), 'cut')}")
    returned = sum(slot.returned_bytes for slot in entry.slots)
    if returned:
        parts.append(f"| brought back {bytes_text(returned)}")
    if entry.carried_rows:
        parts.append(f"| carried {entry.carried_rows:,} rows over")
    if entry.restored_slots:
        parts.append(f"| restored slots {entry.restored_slots}")
    if entry.deferred_slots:
        parts.append(f"| slots {entry.deferred_slots} lost, left to cleanup")
    if entry.withdrawn:
        parts.append("| seal withdrawn")
    if entry.sealed:
        parts.append(f"| sealed {entry.sealed.session}")
    parts.append(f"| {entry.seconds.get('job', 0.0):.2f} s")
    return " ".join(parts)
