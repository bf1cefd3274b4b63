"""Rows that happened outside their session's day: counted by stream and session, and shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spillway.calendar import CalendarError, day_ms
from spillway.clock import rfc3339
from spillway.decode import compile_query, decode
from spillway.decode.chunks import Chunk
from spillway.engine.groups import GroupMap
from spillway.engine.wire.blocks import decode_counts, from_batch
from spillway.metrics.figures import journal_figures
from spillway.protocol.recovery import Restore
from spillway.readmodel.model import ReadModel
from spillway.report.model import Status
from spillway.report.status import status
from spillway.report.terminal import render
from spillway.stream.decoding import DecodeTask, decode_chunks
from spillway.stream.tasks import _days_us
from spillway.tables import Warehouse
from spillway_schemas.journal import Claim, Epoch, Genesis, PartitionCount, Prefix, entry_texts
from spillway_schemas.query import Query, query_of
from spillway_schemas.settings import Settings
from spillway_schemas.tomlfile import parse_toml
from tests.protocol_entries import NEXT, claim, ends, epoch, genesis, seal
from tests.report_journal import fill_journal, open_warehouse
from tests.unit.test_stream_tasks import SETTINGS

DAY = "2026-01-05"
BEGIN_S, END_S = 100, 200
"""Of the day in these tests, seconds since 1970; the next one's ends at 300."""
TEXT = """
[streams.a]
topic = "t"
fields = { k = "string", at = "timestamp" }
time = "at"
filter = "k <> 'no'"
[streams.b]
fields = { k = "string", at = "timestamp" }
[join]
inputs = ["a", "a as again", "b"]
on = ["k"]
"""


def query(text: str = TEXT) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


def plain(text: str) -> str:
    return text.replace('time = "at"', "")


COMPILED = compile_query(query())


def test_a_time_without_a_window_changes_no_query() -> None:
    """It is another question, not another join: a warehouse may go on with it."""
    assert query().fingerprint == query(plain(TEXT)).fingerprint
    assert query().event_time is None
    found = {plan.name: (plan.time, plan.day_time) for plan in COMPILED.streams}
    assert found == {"a": (None, "at"), "again": (None, "at"), "b": (None, None)}
    assert COMPILED.spec == compile_query(query(plain(TEXT))).spec


def test_what_a_value_says_does_not_depend_on_it() -> None:
    values = pa.array([b'{"k":"x","at":"1970-01-01T00:02:00Z"}', b"{", b'{"k":"no"}'] * 40)
    with_time, without = (compile_query(query(t)).streams[0] for t in (TEXT, plain(TEXT)))
    one, other = decode(with_time, values), decode(without, values)
    assert one.rows.equals(other.rows)
    assert (one.reasons, one.filtered, one.times) == (other.reasons, other.filtered, None)
    assert (one.happened is None, other.happened) == (False, None)


def counted(
    rows: list[tuple[int | None, bool]],
    bound: int | None,
    days: dict[str, tuple[int, int]],
    **more: Any,
) -> tuple[int | None, int | None]:
    """What the block of counts says of one partition of `t`, in batches of some rows."""
    values = [
        b"{" if at is None else json.dumps({"k": "x" if kept else "no", "at": rfc3339(at * 1000)})
        for at, kept in rows
    ]
    task = DecodeTask(
        COMPILED.spec,
        COMPILED.streams,
        GroupMap([(Prefix(0, 0), 0)]),
        (0,),
        session=DAY,
        next_session="" if bound is None else NEXT,
        bound=None if bound is None else {"t": [bound], "b": [0]},
        days_us={d: (b * 1_000_000, e * 1_000_000) for d, (b, e) in days.items()},
        **more,
    )
    n = len(rows)
    none = np.zeros(n, np.int64)
    chunk = Chunk("t", 0, pa.array(values, pa.large_binary()), np.arange(n), none)
    found = [
        count
        for each in decode_chunks(task, [chunk] if n else [])
        for block in from_batch(each)
        if block.kind == "count"
        for count in decode_counts(block)
    ]
    assert len(found) == (n > 0), "a topic that is read twice counts once"
    return (found[0].outside, found[0].next_outside) if found else (0, 0)


ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([0, 99, 100, 101, 199, 200, 201, 299, 300])),
        st.booleans(),
    ),
    max_size=90,
)


@given(ROWS, st.one_of(st.none(), st.integers(0, 90)))
def test_each_row_is_held_against_the_day_of_its_session(
    rows: list[tuple[int | None, bool]], bound: int | None
) -> None:
    """Those that the filter leaves out, too; not those that break their contract."""
    days = {DAY: (BEGIN_S, END_S), NEXT: (END_S, 300)}
    expected = [0, 0]
    for offset, (at, _) in enumerate(rows):
        later = bound is not None and offset >= bound
        begin, end = days[NEXT if later else DAY]
        expected[later] += at is not None and not begin <= at < end
    now, after = counted(rows, bound, days)
    assert (now, after or 0) == tuple(expected)


def test_it_is_not_counted_where_there_is_no_day() -> None:
    rows: list[tuple[int | None, bool]] = [(0, True)] * 3
    assert counted(rows, 1, {}) == (None, None)
    assert counted(rows, 1, {NEXT: (100, 200)}) == (None, 2)
    again = Restore(frozenset({0}), {"t": [0], "b": [0]}, {"t": [3], "b": [0]}, (), ())
    assert counted(rows, None, {DAY: (100, 200)}, restore=again) == (None, None), "read before"


def test_parts_of_a_partition_add_up() -> None:
    facts = {"topic": "a", "partition": 0, "rows": 1, "rejected": 0, "filtered": 0, "digest": 0}
    one, two = (PartitionCount(**facts, outside=n) for n in (1, None))  # type: ignore[arg-type]
    assert (one + one).outside == 2
    assert (one + two).outside == (two + one).outside == 1
    assert (two + two).outside is None


def test_a_day_goes_from_close_to_close() -> None:
    grace = 300
    begin, end = day_ms("XNYS", DAY, grace)
    assert (rfc3339(begin), rfc3339(end)) == (
        "2026-01-02T21:05:00.000+00:00",
        "2026-01-05T21:05:00.000+00:00",
    ), "the weekend included"
    assert day_ms("XNYS", NEXT, grace)[0] == end
    with pytest.raises(CalendarError, match="not a trading day"):
        day_ms("XNYS", "2026-01-04", grace)
    settings = SETTINGS.__class__(**(SETTINGS.__dict__ | {"days": "XNYS", "grace_s": grace}))
    assert _days_us(settings, [DAY, "", "2026-01-04"]) == {DAY: (begin * 1000, end * 1000)}


# --- shown


def read(topic: str, rows: int, outside: int | None, after: int | None = None) -> PartitionCount:
    return PartitionCount(
        topic=topic,
        partition=0,
        rows=rows,
        rejected=0,
        filtered=0,
        digest=0,
        outside=outside,
        next_outside=after,
    )


def dated(*entries: Genesis | Claim | Epoch) -> list[Genesis | Claim | Epoch]:
    at = "2026-01-05T14:30:00.000+00:00"
    update = {"written_at": at}
    return [
        each.model_copy(update=update | ({"started_at": at} if each.kind == "epoch" else {}))
        for each in entries
    ]


def two_sessions() -> list[Genesis | Claim | Epoch]:
    parts = [read("a", 5, 1, 2), read("b", 5, None)]
    ending = epoch(3, 1, ends(9, 0, 9), seal=seal(ends(7, 0, 7)), read=parts)
    first = epoch(2, 0, ends(4, 0, 4), read=[read("a", 4, 2)])
    return dated(genesis(), claim(1, 1), first, ending)


def looked(root: Path, entries: Sequence[Genesis | Claim | Epoch]) -> tuple[Status, str]:
    """The status, and what a terminal shows of it."""
    fill_journal(open_warehouse(str(root)), entries)
    now = datetime(2026, 1, 5, 15, tzinfo=UTC)
    found = status(Warehouse(str(root)), Settings(), now, None)
    console = Console(width=120, record=True, file=StringIO())
    console.print(render(found, console))
    return found, " ".join(console.export_text().split())


def test_it_is_told_by_stream_and_session(tmp_path: Path) -> None:
    found, text = looked(tmp_path / "w", two_sessions())
    assert {each.topic: each.outside for each in found.topics} == {"a": 3, "b": None}
    days = {each.session: each.outside for each in found.sessions}
    assert days == {DAY: {"a": 3}, NEXT: {"a": 2}}
    assert f"3 of 7 rows of a happened outside the day of {DAY}" in text
    assert "outside the day" in text


def test_prometheus_gets_the_sum_of_all_days() -> None:
    first, *rest = two_sessions()
    assert isinstance(first, Genesis)
    model = ReadModel.of("", first)
    for entry in rest:
        model.add(entry_texts(entry)[0], entry)
    assert journal_figures(model, 2.0, "symbol").outside == {"a": 5}


def test_nothing_is_shown_where_nothing_is_counted(tmp_path: Path) -> None:
    found, text = looked(tmp_path / "w", dated(genesis(), claim(1, 1)))
    assert [each.outside for each in found.topics] == [None, None]
    assert "outside" not in text
