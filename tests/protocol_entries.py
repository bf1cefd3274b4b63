"""The shortest journal entries and reports that are valid: what tests of the protocol vary.

Two topics, `a` with two partitions and `b` with one; groups 2/0 and 2/1 at slot 0, 2/2 and 2/3 at
slot 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spillway_schemas.commands import Command
from spillway_schemas.journal import (
    Claim,
    Cut,
    Epoch,
    FileRecord,
    Genesis,
    Offsets,
    PartitionCount,
    Prefix,
    Sealed,
    SealRequest,
    SlotReport,
    Topic,
)
from tests.commands import command_of

DAY, NEXT, THIRD = "2026-01-05", "2026-01-06", "2026-01-07"
GROUPS = tuple((Prefix(2, value), value // 2) for value in range(4))
TOPICS = (Topic(name="a", id="id-a", partitions=2), Topic(name="b", id="id-b", partitions=1))


def ends(a0: int, a1: int, b0: int) -> Offsets:
    """Offsets of all three partitions."""
    return {"a": [a0, a1], "b": [b0]}


def genesis(**more: Any) -> Genesis:
    """Entry 0."""
    facts: dict[str, Any] = {
        "warehouse_id": "w",
        "cluster_id": "c",
        "topics": list(TOPICS),
        "query": "q",
        "session": DAY,
        "start": ends(0, 0, 0),
        "start_rule": "earliest",
        "inputs": 2,
        "groups": list(GROUPS),
        "written_at": "before",
    }
    return Genesis(**(facts | more))


def claim(n: int, term: int, **more: Any) -> Claim:
    """A driver takes over."""
    facts: dict[str, Any] = {"driver": "host/1", "written_at": "started"}
    return Claim(n=n, term=term, **(facts | more))


def epoch(n: int, number: int, end: Offsets, **more: Any) -> Epoch:
    """An epoch of term 1 that did nothing but read up to `end`."""
    facts: dict[str, Any] = {
        "term": 1,
        "session": DAY,
        "manifests": {0: f"m-{number}-0", 1: f"m-{number}-1"},
        "files": [],
        "cuts": [],
        "read": [],
        "results": {},
        "slots": [],
        "started_at": "then",
        "written_at": "now",
    }
    return Epoch(n=n, epoch=number, end=end, **(facts | more))


def seal(end: Offsets, **more: Any) -> SealRequest:
    """The end of the first day."""
    facts = {"session": DAY, "next_session": NEXT, "command": "close"}
    return SealRequest(end=end, **(facts | more))


def sealed(end: Offsets, number: int, **more: Any) -> Sealed:
    """The first day, ended in epoch `number`."""
    facts: dict[str, Any] = {
        "session": DAY,
        "start": ends(0, 0, 0),
        "ranges": [],
        "results": 0,
        "spilled_rows": 0,
        "generations": 0,
    }
    return Sealed(epoch=number, end=end, **(facts | more))


def cut(value: int, number: int, *, session: str = DAY, depth: int = 2) -> Cut:
    """A spill of one group."""
    return Cut(session=session, operator=0, range=Prefix(depth, value), epoch=number)


def file(table: str, number: int, slot: int = 0) -> FileRecord:
    """A data file of an epoch."""
    path = f"session_date={DAY}/{number}-x-{slot}-{table}.parquet"
    return FileRecord(table=table, path=path, bytes=10, rows=1, digest="sha256:0")


def count(topic: str, partition: int, rows: int, digest: int = 0) -> PartitionCount:
    """What was read of one partition."""
    return PartitionCount(
        topic=topic, partition=partition, rows=rows, rejected=0, filtered=0, digest=digest
    )


def report(slot: int, number: int, **more: Any) -> SlotReport:
    """A step that is done."""
    facts: dict[str, Any] = {"attempt": "x", "manifest": f"m-{number}-{slot}"}
    return SlotReport(slot=slot, epoch=number, **(facts | more))


def lost(slot: int, number: int, unfound: Mapping[int, str] | None = None) -> SlotReport:
    """A step whose state was not found, or that of the slots that it tells of."""
    told = {slot: "gone"} if unfound is None else dict(unfound)
    return report(slot, number, manifest=None, status="missing", unfound=told)


def closing(end: Offsets, id_: str = "close", **more: Any) -> Command:
    """A seal command."""
    return command_of("seal", id_, session=more.pop("session", DAY), offsets=end, **more)


def withdrawing(seal: str = "close", id_: str = "back", **more: Any) -> Command:
    """A command that takes a seal back."""
    return command_of("withdraw", id_, session=more.pop("session", DAY), seal=seal, **more)
