"""The pure rules of the tables: names, compaction plans, garbage, torn logs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from spillway.storage import FileInfo
from spillway.tables.compaction import (
    BASE_BYTES,
    DAY_BYTES,
    FAN_IN,
    TARGET_BYTES,
    deep_plan,
    level,
    plan,
)
from spillway.tables.damage import COUNTS, entry_problem, first_bad
from spillway.tables.events import SessionEvent
from spillway.tables.garbage import Settled, sort_orphans
from spillway.tables.log import ActiveFile
from spillway.tables.retention import droppable, expired, proved
from spillway_schemas.filenames import (
    FileOrigin,
    cleanup_name,
    compact_name,
    data_name,
    entry_name,
    origin,
)

DAY = "2026-01-05"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (data_name(7, "a1a1a1a1a1a1", 0, 2), FileOrigin("epoch", 7)),
        (f"session_date={DAY}/" + data_name(0, "efefefefefef", 11, 0), FileOrigin("epoch", 0)),
        (cleanup_name(DAY, 3, "abababababab", 0), FileOrigin("cleanup", 3, DAY)),
        (compact_name(12, "abababababab", 0), FileOrigin("compact", 12)),
        (entry_name(5, "abababababab"), FileOrigin("entry", 5)),
        ("part-00000-f150da39-3bbe-41ec-a80b-efb5e7e7dbd2-c000.zstd.parquet", None),
        ("7-a1-0-2.parquet.crc", None),
        ("notes.txt", None),
        ("7.parquet", None),
        # What people put beside the tables, and copies of our own files in other places.
        ("2026-01-05-1.parquet", None),
        ("2026-11-15-1.parquet", None),
        ("2026-20260105123000-1-1.parquet", None),
        ("cleanup-notes-3-1.parquet", None),
        ("cleanup-2026-1-5-3-abababababab-0.parquet", None),
        ("cleanup-2026-13-01-3-abababababab-0.parquet", None),
        ("backup/" + data_name(7, "a1a1a1a1a1a1", 0, 2), None),
        (f"session_date={DAY}/" + cleanup_name("2026-01-06", 3, "abababababab", 0), None),
        (f"session_date={DAY}/" + entry_name(5, "abababababab"), None),
    ],
)
def test_names_say_who_wrote(name: str, expected: FileOrigin | None) -> None:
    assert origin(name) == expected


@pytest.mark.parametrize("attempt", ["", "a1", "a-b", "a/b", "A1A1A1A1A1A1", "20260105123000"])
def test_an_attempt_is_hexadecimal_digits(attempt: str) -> None:
    with pytest.raises(ValueError, match="attempt"):
        data_name(1, attempt, 0, 0)


# --- compaction ------------------------------------------------------------------------------


def active(k: int, size: int, day: str = DAY) -> ActiveFile:
    path = f"session_date={day}/{k}-aaaaaaaaaaaa-0-0.parquet"
    return ActiveFile(path, size, 10, {"session_date": day}, sessions=(day, day))


def test_levels_grow_by_the_fan_in() -> None:
    assert level(1) == level(BASE_BYTES) == 0
    assert level(BASE_BYTES + 1) == level(BASE_BYTES * FAN_IN) == 1
    assert level(BASE_BYTES * FAN_IN + 1) == 2


def test_nothing_is_planned_before_a_level_is_full() -> None:
    few = [active(k, 1000) for k in range(FAN_IN - 1)]
    assert plan(few) == []
    assert plan([*few, active(99, BASE_BYTES * 2)]) == []
    assert plan([*few, active(99, 1000, day="2026-01-06")]) == []


def test_a_full_level_becomes_one_file_oldest_first() -> None:
    files = [active(k, 1000) for k in reversed(range(FAN_IN + 3))]
    assert plan(files) == [list(reversed(files))]


def test_large_files_are_left_alone() -> None:
    assert plan([active(k, DAY_BYTES) for k in range(100)]) == []
    big = [active(k, DAY_BYTES // 4) for k in range(FAN_IN)]
    assert plan(big) == [big[:4]]


def of_sessions(k: int, first: str, last: str, size: int = 1000) -> ActiveFile:
    """A file of `statistics`, which has no partitions."""
    return ActiveFile(
        f"{k}-aaaaaaaaaaaa-0-0.parquet", size, 10, {}, least=k, sessions=(first, last)
    )


def test_rows_of_different_sessions_stay_apart() -> None:
    files = [of_sessions(k, DAY, DAY) for k in range(FAN_IN)]
    files += [of_sessions(90 + k, "2026-01-06", "2026-01-06") for k in range(FAN_IN)]
    files.insert(0, of_sessions(80, DAY, "2026-01-06"))
    assert plan(files) == [files[1 : FAN_IN + 1], files[FAN_IN + 1 :]]
    assert deep_plan(files, {DAY}) == [files[1 : FAN_IN + 1]]


def test_at_night_small_files_of_days_that_are_over_become_few() -> None:
    half = TARGET_BYTES // 2
    small = [active(k, 1000) for k in range(3)]
    assert deep_plan(small, {DAY}) == [small]
    assert deep_plan(small, {"2026-01-06"}) == []
    assert deep_plan(small[:1], {DAY}) == []
    assert deep_plan([active(0, half), active(1, half)], {DAY}) == []  # large enough
    most = [active(k, half - 1) for k in range(5)]
    assert deep_plan(most, {DAY}) == [most[:2], most[2:4]]


def test_at_night_numbered_tables_are_merged_in_their_order() -> None:
    files = [ActiveFile(f"entry-{n}-a.parquet", 100, 1, {}, n, n) for n in (2, 0, 1)]
    assert deep_plan(files, None) == [[files[1], files[2], files[0]]]


# --- retention -------------------------------------------------------------------------------


def event(session: str, kind: str, days: int = 0, complete: bool | None = None) -> SessionEvent:
    at = f"2026-02-{1 + days:02d}T00:00:00+00:00"
    return SessionEvent(session=session, event=kind, complete=complete, written_at=at)  # type: ignore[arg-type]


def test_a_day_is_proved_by_its_last_verdict_after_its_cleanup() -> None:
    yes, no = (lambda s, c=c: event(s, "verified", complete=c) for c in (True, False))
    clean = lambda s, days=0: event(s, "cleaned", days)  # noqa: E731
    events = [
        *(clean("a"), yes("a")),
        *(yes("b"), clean("b")),
        *(clean("c"), yes("c"), no("c")),
        *(clean("d"), no("d"), yes("d")),
        *(clean("e", 1), yes("e"), clean("e", 5)),  # of two cleanups the first counts
        clean("f"),
        *(event("g", "sealed"), yes("g")),
    ]
    assert {session: at.day for session, at in proved(events).items()} == {"a": 1, "d": 1, "e": 2}
    now_s = datetime(2026, 2, 4, tzinfo=UTC).timestamp()
    assert expired(events, now_s, 2) == {"a", "d", "e"}
    assert expired(events, now_s - 1, 2) == {"a", "d"}
    assert expired(events, now_s, 4) == frozenset()


def test_files_are_dropped_when_every_session_in_them_may_go() -> None:
    one, two, three = (f"2026-01-0{k}" for k in (5, 6, 7))
    whole, both, all_ = (
        of_sessions(1, one, one),
        of_sessions(2, one, two),
        of_sessions(3, one, three),
    )
    unknown = ActiveFile("4-a-0-0.parquet", 1, 1, {})
    files, known = [whole, both, all_, unknown], [one, two, three]
    assert droppable(files, {one}, known) == [whole]
    assert droppable(files, {one, two}, known) == [whole, both]
    assert droppable(files, {one, three}, known) == [whole]
    assert droppable(files, {one, two, three}, known) == [whole, both, all_]


# --- garbage ---------------------------------------------------------------------------------

SETTLED = Settled(
    epoch=5,
    cleaned=frozenset({"2026-01-02"}),
    transactions={"results": {"compaction": 3, "results": -1}, "journal": {"journal": 9}},
)


@pytest.mark.parametrize(
    ("table", "path", "age_s", "verdict"),
    [
        ("results", data_name(5, "aaaaaaaaaaaa", 0, 0), 100, "delete"),
        ("results", data_name(6, "aaaaaaaaaaaa", 0, 0), 100, "keep"),  # may be journaled yet
        ("results", data_name(5, "aaaaaaaaaaaa", 0, 0), 99, "keep"),  # too young
        ("results", cleanup_name("2026-01-02", 0, "aaaaaaaaaaaa", 0), 100, "delete"),
        ("results", cleanup_name(DAY, 0, "aaaaaaaaaaaa", 0), 100, "keep"),  # not cleaned yet
        ("results", compact_name(3, "aaaaaaaaaaaa", 0), 100, "delete"),
        ("results", compact_name(4, "aaaaaaaaaaaa", 0), 100, "keep"),  # in progress
        (
            "spill",
            compact_name(0, "aaaaaaaaaaaa", 0),
            100,
            "keep",
        ),  # a table that is never compacted
        ("journal", entry_name(9, "aaaaaaaaaaaa"), 100, "delete"),
        ("journal", entry_name(10, "aaaaaaaaaaaa"), 100, "keep"),  # being appended
        ("results", "somebody's.parquet", 10**9, "foreign"),
        ("results", "_delta_log/00000000000000000000.json", 10**9, None),
        ("results", data_name(1, "adadadadadad", 0, 0), 10**9, None),
        ("results", data_name(1, "dededededede", 0, 0), 10**9, "keep"),  # compacted 99 s ago
    ],
)
def test_garbage_rules(table: str, path: str, age_s: float, verdict: str | None) -> None:
    now_s = 10.0**10
    found = sort_orphans(
        table,
        [FileInfo(path, 1, now_s - age_s)],
        [data_name(1, "adadadadadad", 0, 0)],
        {data_name(1, "dededededede", 0, 0): now_s - 99},
        SETTLED,
        now_s=now_s,
        min_age_s=100,
    )
    verdicts = {
        name: verdict
        for verdict in ("delete", "keep", "foreign")
        for name in (info.name for info in getattr(found, verdict))
    }
    assert verdicts.get(path) == verdict


# --- torn logs -------------------------------------------------------------------------------


def entry(adds: int, removes: int = 0, said: tuple[int, int] | None = None) -> bytes:
    counts = (*(said or (adds, removes)), 1)
    info = dict(zip(("add", "remove", "txn"), counts, strict=True))
    lines = [
        {"commitInfo": {COUNTS[kind]: n for kind, n in info.items()}},
        *[{"add": {"path": str(k)}} for k in range(adds)],
        *[{"remove": {"path": str(k)}} for k in range(removes)],
        {"txn": {"appId": "spillway", "version": 1}},
    ]
    return "\n".join(json.dumps(line) for line in lines).encode()


def test_a_whole_entry_is_well() -> None:
    assert entry_problem(entry(2, 1)) is None
    assert entry_problem(b'{"commitInfo":{}}\n{"add":{}}') is None  # somebody else's commit


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"\0" * 4096, "cut short"),
        (entry(2)[:-3], "cut short"),
        (entry(2)[:100] + b"\0" * 100, "cut short"),
        (entry(1, said=(2, 0)), "should hold 2 'add' actions and holds 1"),
        (entry(1, 0, said=(1, 2)), "should hold 2 'remove' actions and holds 0"),
        (b'{"add":{}}', "no description"),
        (b"[1]", "no action"),
        (b"\xff\xfe", "cut short"),
    ],
)
def test_torn_entries_are_told(text: bytes, problem: str) -> None:
    found = entry_problem(text)
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    ("versions", "checkpoint", "torn", "bad"),
    [
        ([0, 1, 2], -1, None, None),
        ([0, 1, 2], -1, 2, 2),
        ([0, 1, 2], 2, 2, None),  # the checkpoint holds it
        ([0, 2], -1, None, 1),
        ([7, 8], 7, None, None),  # older ones were cleaned
        ([0, 1, 2, 3], -1, 1, 1),
        ([], -1, None, None),
        ([5, 6], 2, None, 3),
    ],
)
def test_the_first_bad_entry(
    versions: list[int], checkpoint: int, torn: int | None, bad: int | None
) -> None:
    found = first_bad(versions, checkpoint, lambda v: b"" if v == torn else entry(1))
    assert (found[0] if found else None) == bad


def test_every_cut_of_an_entry_is_told() -> None:
    whole = entry(3)
    for length in range(len(whole)):
        assert entry_problem(whole[:length]) is not None, length
