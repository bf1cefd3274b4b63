"""Input that nobody has any more, and who has accepted that."""

from __future__ import annotations

from collections.abc import Iterable

from spillway_schemas.journal import Record


def accepted_text(by: str, reason: str) -> str:
    """Who has accepted a loss, and why, for people: `accepted by ada: retention was a week`. What
    is not known is left out."""
    who = f"accepted by {by}" if by else "accepted"
    return f"{who}: {reason}" if reason else who


class LostRange(Record):
    """Offsets of a topic partition that Kafka does not hold any more: from `begin` to before
    `end`."""

    topic: str
    partition: int
    begin: int
    end: int

    def __str__(self) -> str:
        """For people: `stock/0 from offset 0 to 4,711`."""
        return f"{self.topic}/{self.partition} from offset {self.begin:,} to {self.end:,}"


def united(ranges: Iterable[LostRange]) -> list[LostRange]:
    """The same offsets in as few ranges as there can be, by topic and partition."""
    found: list[LostRange] = []
    for each in sorted(ranges, key=lambda r: (r.topic, r.partition, r.begin)):
        last = found[-1] if found else each
        same = (last.topic, last.partition) == (each.topic, each.partition)
        if found and same and each.begin <= last.end:
            found[-1] = last.model_copy(update={"end": max(last.end, each.end)})
        else:
            found.append(each)
    return found


class AcceptedLoss(Record):
    """What a session has lost, as a person has accepted it."""

    ranges: list[LostRange]
    reason: str
    by: str

    def covers(self, lost: Iterable[LostRange]) -> bool:
        """Whether all of this was accepted."""
        return all(
            any(
                (mine.topic, mine.partition) == (each.topic, each.partition)
                and mine.begin <= each.begin
                and each.end <= mine.end
                for mine in self.ranges
            )
            for each in lost
        )

    @property
    def offsets(self) -> int:
        """How many offsets are lost: rows, at most."""
        return sum(each.end - each.begin for each in self.ranges)
