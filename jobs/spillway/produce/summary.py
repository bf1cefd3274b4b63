"""What was sent, while it is being sent and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rich.markup import escape
from rich.table import Table


@dataclass
class ProducedTally:
    """Counts of one topic."""

    topic: str
    rows: int = 0
    value_bytes: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    late: int = 0
    repeated: int = 0

    def add(self, other: ProducedTally) -> None:
        """Add what was sent to the same topic elsewhere."""
        self.rows += other.rows
        self.value_bytes += other.value_bytes
        for kind, count in other.malformed.items():
            self.malformed[kind] = self.malformed.get(kind, 0) + count
        self.late += other.late
        self.repeated += other.repeated


@dataclass(frozen=True)
class ProduceProgress:
    """How far it is."""

    rows: int
    total: int
    """Rows in all; 0 when that is not known (a replay of a file that is not read yet)."""
    value_bytes: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        """Average rate since the beginning."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


Report = Callable[[ProduceProgress], None]


@dataclass(frozen=True)
class Summary:
    """What was sent, all of it acknowledged by the broker."""

    topics: list[ProducedTally]
    seconds: float
    processes: int

    @property
    def rows(self) -> int:
        """Messages of every kind."""
        return sum(t.rows for t in self.topics)

    @property
    def malformed(self) -> int:
        """Messages that no contract accepts."""
        return sum(sum(t.malformed.values()) for t in self.topics)

    @property
    def value_bytes(self) -> int:
        """Bytes of the values, uncompressed."""
        return sum(t.value_bytes for t in self.topics)

    @property
    def rows_per_s(self) -> float:
        """Average rate."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


def sent(summary: Summary, *, made: bool) -> Table:
    """What was sent, for people. Only of messages that were made here is it known how they are."""
    counted = ("malformed", "late", "repeated") if made else ()
    table = Table("topic", "rows", *counted, "bytes", box=None)
    for each in summary.topics:
        counts = [each.rows]
        if made:
            counts += [sum(each.malformed.values()), each.late, each.repeated]
        table.add_row(escape(each.topic), *(f"{n:,}" for n in (*counts, each.value_bytes)))
    return table
