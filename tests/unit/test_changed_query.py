"""A changed query: refused in mid-session, taken up with the next one, and the old one kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from spillway.engine.wire.datafile import write_data_file
from spillway.protocol import driver as protocol
from spillway.protocol.closed import whole_session
from spillway.protocol.deferral import deferred_rows
from spillway.protocol.entry import entry_of
from spillway.protocol.losses import loss_of
from spillway.protocol.offsets import greater
from spillway.protocol.plan import plan_epoch
from spillway.protocol.queries import (
    QueryChanged,
    goes_on_by_another,
    kept_query,
    session_query,
    told_changes,
)
from spillway.protocol.recovery import history_begins
from spillway.protocol.seal import carried_from, no_further, obey
from spillway.protocol.snapshot import snapshot_of, state_of
from spillway.protocol.state import (
    AnotherQuery,
    JournalBroken,
    JournalState,
    fold,
    genesis_at,
    genesis_of,
    not_changeable,
    with_journal,
)
from spillway.relay import run as relaying
from spillway.relay.run import Telling
from spillway.relay.service import relay_results
from spillway.sealed_input.timing import timing_of
from spillway.storage import folder
from spillway.tables import TableDefinition, WrongTable
from spillway.tables.columns import ColumnConflict, united
from spillway.tables.compaction import merge
from spillway.tables.log import Table
from spillway_schemas.commands import Command
from spillway_schemas.hash_space import ROOT, spaces
from spillway_schemas.journal import (
    Claim,
    Epoch,
    EventTime,
    Genesis,
    Offsets,
    Prefix,
    QueryText,
    Topic,
)
from spillway_schemas.query import Query, query_of
from spillway_schemas.settings import load_settings
from spillway_schemas.snapshot import JournalSnapshot
from spillway_schemas.tomlfile import parse_toml
from spillway_schemas.windows import BEGINNING_US
from tests.commands import command_of
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import (
    DAY,
    GROUPS,
    NEXT,
    THIRD,
    TOPICS,
    claim,
    closing,
    count,
    cut,
    ends,
    epoch,
    genesis,
    report,
    seal,
    sealed,
)

TEXT = """
[streams.a]
fields = {{ symbol = "string", price = "double" }}
[streams.{other}]
fields = {{ symbol = "string", size = "int" }}
[join]
inputs = ["a", "{other}"]
on = ["symbol"]
"""
C = Topic(name="c", id="id-c", partitions=1)


def query(text: str) -> Query:
    return query_of(parse_toml(text, Path("/desk/q.toml")))


OLD, NEW, OTHER = (
    query(TEXT.format(other="b")),
    query(TEXT.format(other="c")),
    query(TEXT.format(other="b").replace("double", "decimal(18,4)")),
)


def folded(*entries: object, state: JournalState | None = None) -> JournalState:
    for entry in entries:
        state = fold(state, entry)  # type: ignore[arg-type]
    assert state is not None
    return state


BEGUN = (
    genesis(query=OLD.fingerprint, text=OLD.text),
    claim(1, 1),
    epoch(2, 0, ends(4, 5, 6), read=[count("a", 0, 4, 40), count("b", 0, 6, 60)]),
)
SEALED = epoch(
    3,
    1,
    ends(4, 5, 6),
    session=NEXT,
    seal=seal(ends(4, 5, 6)),
    sealed=sealed(ends(4, 5, 6), 1, base=-1),
)
AT_REST = folded(*BEGUN, SEALED)


def wanted(**more: object) -> Genesis:
    """As `NEW` would begin a warehouse: of topics a and c."""
    facts: dict[str, object] = {
        "query": NEW.fingerprint,
        "text": NEW.text,
        "topics": [TOPICS[0], C],
        "start": {"a": [1, 1], "c": [7]},
        "session": NEXT,
    }
    return genesis(**(facts | more))


def changed(n: int = 4, **more: object) -> JournalState:
    return folded(claim(n, 2, begins=with_journal(AT_REST, wanted(**more))), state=AT_REST)


# --- the journal -----------------------------------------------------------------------------


def test_the_open_session_goes_on_by_the_changed_query() -> None:
    state = changed()
    assert (state.genesis.query, state.genesis.after) == (NEW.fingerprint, 1)
    # What was read of a topic stays read; a new one begins where the query says.
    assert state.end == state.session.start == {"a": [4, 5], "c": [7]}
    assert (state.session.date, state.session.base) == (NEXT, 1)
    assert state.topics == (TOPICS[0], C)
    assert state.counts == {("a", 0): (4, 40)}
    assert state.marks.keys() == {1}
    assert state.marks[1].end == state.end
    assert state.manifests == {0: None, 1: None}
    assert state.groups == GROUPS
    after = folded(
        epoch(5, 2, {"a": [6, 5], "c": [9]}, term=2, session=NEXT, read=[count("c", 0, 2, 9)]),
        state=state,
    )
    assert after.counts == {("a", 0): (4, 40), ("c", 0): (2, 9)}


def test_what_was_sealed_keeps_its_own() -> None:
    state = changed()
    first = genesis_of(state, state.sealed[DAY])
    assert (first.query, first.topics, first.groups) == (OLD.fingerprint, list(TOPICS), [])
    assert genesis_of(AT_REST, AT_REST.sealed[DAY]) is AT_REST.genesis
    next_end = {"a": [9, 9], "c": [9]}
    ended = {"session": NEXT, "epoch": 2, "start": state.session.start}
    after = folded(
        epoch(
            5,
            2,
            next_end,
            term=2,
            session=THIRD,
            seal=seal(next_end, session=NEXT, next_session=THIRD),
            sealed=sealed(next_end, 2, base=1).model_copy(update=ended),
        ),
        state=state,
    )
    assert genesis_of(after, after.sealed[DAY]) is first
    assert genesis_of(after, after.sealed[NEXT]) is after.genesis
    kept = JournalSnapshot.model_validate_json(snapshot_of(after, "e").model_dump_json())
    assert state_of(kept) == after


def test_the_journal_tells_what_the_warehouse_was(tmp_path: Path) -> None:
    """From its entries, and from a snapshot with those after it."""
    journal = new_warehouse(tmp_path / "w", FIRST).journal
    begins = with_journal(AT_REST, wanted())
    entries = [*BEGUN, SEALED, claim(4, 2, begins=begins)]
    at = "2026-01-05T21:00:00Z"
    for each in entries:
        dated = {name: at for name in ("written_at", "started_at") if hasattr(each, name)}
        journal.append(each.model_copy(update=dated))
    told = [each.query for each in journal.geneses()]
    assert told == [OLD.fingerprint, NEW.fingerprint]
    journal.keep(journal.state() or pytest.fail("no state"))
    assert [each.query for each in journal.geneses()] == told
    assert [genesis_at(journal.geneses(), n).query for n in (-1, 1, 2)] == [told[0], *told]


def test_other_joins_have_groups_of_their_own() -> None:
    shares = [(space.part(prefix), slot) for space in spaces(2) for prefix, slot in GROUPS]
    tree = {"joins": ["low", "high"], "parents": [1, ROOT], "groups": shares}
    state = changed(**tree)
    assert state.groups == tuple(shares)
    assert state.assignment_version == 1
    assert changed().assignment_version == AT_REST.assignment_version
    with pytest.raises(JournalBroken, match="and the slots"):
        changed(**{**tree, "groups": [(Prefix(0, 0), 0)]})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (folded(*BEGUN), rf"{DAY} has begun by the query as it was: 15 rows of it are read"),
        (
            folded(*BEGUN, epoch(3, 1, ends(4, 5, 6), seal=seal(ends(9, 9, 9)))),
            rf"{DAY} is being sealed, and not all of its rows have been read",
        ),
        (
            folded(
                epoch(4, 2, ends(4, 5, 6), session=NEXT, cuts=[cut(0, 2, session=NEXT)]),
                state=AT_REST,
            ),
            rf"{NEXT} has begun by the query as it was: 0 rows",
        ),
    ],
)
def test_a_session_that_has_begun_keeps_its_query(state: JournalState, why: str) -> None:
    assert why in not_changeable(state)
    begins = with_journal(state, wanted())
    with pytest.raises(JournalBroken, match=why):
        fold(state, claim(state.n + 1, 2, begins=begins))
    with pytest.raises(QueryChanged) as refused:
        goes_on_by_another(state, NEW)
    date = state.session.date
    assert str(refused.value) == (
        f"the query has changed in mid-session: {not_changeable(state)}.\n"
        "  stream b: goes: topic b\n"
        "  join: of a, b -> of a, c\n"
        "  join: key symbol: a.symbol = b.symbol -> a.symbol = c.symbol\n"
        "  stream c: new: topic c\n"
        "Nothing was written. Either go back to the query as it was, or end the session by it, "
        "and the next one takes the changed query up:\n"
        f"  spillway seal --session {date}\n"
        f"  spillway stream --until-sealed {date} --as-begun"
    )
    assert not goes_on_by_another(state, OLD)


@pytest.mark.parametrize(
    "wrong",
    [
        {"warehouse_id": "x"},
        {"after": 0},
        {"session": THIRD},
        {"start": {"a": [5, 5], "c": [7]}},
        {"cluster_id": "x"},
    ],
)
def test_a_change_goes_on_from_where_the_journal_is(wrong: dict[str, object]) -> None:
    begins = with_journal(AT_REST, wanted()).model_copy(update=wrong)
    with pytest.raises(JournalBroken, match="does not go on from there"):
        fold(AT_REST, claim(4, 2, begins=begins))


def test_a_claim_gives_the_text_that_the_journal_lacks() -> None:
    old = folded(genesis(query=OLD.fingerprint))
    state = folded(claim(1, 1, text=OLD.text), state=old)
    assert state.genesis == genesis(query=OLD.fingerprint, text=OLD.text)
    assert kept_query(state.genesis).fingerprint == OLD.fingerprint


def test_rows_are_carried_over_no_change(tmp_path: Path) -> None:
    """What a session has from the one before is of its own query."""
    first = genesis_of(changed(), changed().sealed[DAY])
    carried = sealed(ends(9, 9, 9), 3, carried={"since": 1, "expired_by_us": 0})
    own = with_journal(AT_REST, wanted())
    assert carried_from(own, carried, []) == {"a": [4, 5], "c": [7]}
    assert carried_from(first, carried, [BEGUN[2], SEALED]) == ends(4, 5, 6)


TIMES = EventTime(lateness_us=0, idle_after_ms=1, ahead_us=0, topics=["a"], kept_us=5)


def test_no_time_of_the_query_before_judges_rows() -> None:
    """Where sessions carry rows over, the epoch before the first rows has a watermark that judges
    them: unless it is the other query's."""
    state = changed(event_time=TIMES, carry=True)
    assert (state.reached, state.session.carried) == (((1, BEGINNING_US),), None)
    assert history_begins(state) == 1
    own = replace(state, genesis=state.genesis.model_copy(update={"after": -1}))
    assert history_begins(own) == 0
    before = epoch(3, 1, ends(4, 5, 6), watermarks={DAY: 99})
    after = epoch(5, 2, {"a": [6, 5], "c": [9]}, watermarks={NEXT: 7})
    ended = sealed({"a": [6, 5], "c": [9]}, 2, base=1).model_copy(update={"session": NEXT})
    timing = timing_of(state.genesis, ended, [before, after])
    assert timing is not None
    alone = timing_of(state.genesis, ended, [after])
    assert alone is not None
    assert str(timing.judgings) == str(alone.judgings)


def test_deferred_rows_begin_where_the_changed_query_does() -> None:
    """Of a topic that the query before did not read, its last epoch knows no end."""
    state = changed()
    lost = [cut(value, 2, session=NEXT) for value in range(4)]
    first = epoch(5, 2, {"a": [6, 5], "c": [9]}, term=2, session=NEXT)
    second = epoch(6, 3, {"a": [6, 5], "c": [9]}, term=2, session=NEXT, deferred=lost)
    ended = sealed({"a": [6, 5], "c": [9]}, 3, base=1).model_copy(
        update={"session": NEXT, "start": state.session.start}
    )
    again = deferred_rows(state.genesis, ended, [SEALED, first, second])
    assert again is not None
    assert (again.read_from, again.read_to) == ({"a": [4, 5], "c": [7]}, {"a": [6, 5], "c": [9]})
    whole = whole_session(state.genesis, ended, [SEALED, first, second])
    assert (whole.read_from, whole.read_to) == (again.read_from, again.read_to)


# --- rows that are accepted as lost ----------------------------------------------------------


def losing(lost_to: Offsets, session: str = DAY, **more: str) -> Command:
    return command_of("accept-loss", f"l{session}", session=session, lost_to=lost_to, **more)


def gone_on(
    entries: Sequence[Genesis | Claim | Epoch], end: Offsets, *commands: Command, then: str = NEXT
) -> list[Genesis | Claim | Epoch]:
    """The same, with the stream's next epoch."""
    state = folded(*entries)
    plan = plan_epoch(state, end, commands, then)
    reports = [report(slot, plan.epoch) for slot in state.slots]
    entry = entry_of(state, plan, reports, started_at="", written_at="", seconds={})
    return [*entries, entry]


def lost_day(lost_to: Offsets) -> list[Genesis | Claim | Epoch]:
    """A day that ends behind rows that are lost."""
    entries = gone_on(BEGUN, ends(5, 5, 6), closing(ends(6, 6, 8)))
    return gone_on(entries, ends(6, 6, 8), losing(lost_to, reason="old", by="ada"))


def test_a_loss_of_the_day_before_is_none_of_the_changed_query_s() -> None:
    """Also where its topic is not read any more: then no end would ever reach it."""
    entries = lost_day(ends(0, 0, 8))
    state = folded(*entries)
    assert (state.session.date, state.lost_to) == (NEXT, ends(0, 0, 8))
    assert not not_changeable(state)
    entries.append(claim(5, 2, begins=with_journal(state, wanted())))
    after = folded(*entries)
    assert after.lost_to == {}
    # The next session loses rows of its own.
    mine = losing({"a": [8, 0], "c": [9]}, session=NEXT, reason="new", by="bob")
    end = {"a": [8, 6], "c": [9]}
    close = command_of("seal", "c", session=NEXT, offsets=end)
    entries = gone_on(entries, end, mine, close, then=THIRD)
    after = folded(*entries)

    def loss(date: str) -> tuple[list[str], str, str]:
        found = loss_of(genesis_of(after, after.sealed[date]), after.sealed[date], entries)
        assert found is not None
        return [str(each) for each in found.ranges], found.reason, found.by

    assert loss(DAY) == (["b/0 from offset 0 to 8"], "old", "ada")
    assert loss(NEXT) == (["a/0 from offset 6 to 8", "c/0 from offset 7 to 9"], "new", "bob")


def test_a_session_whose_first_rows_are_lost_has_begun() -> None:
    """It has to say so when it ends, and a changed query would begin behind them."""
    state = folded(*lost_day(ends(7, 6, 8)))
    assert state.session.date == NEXT
    assert not_changeable(state) == (
        f"{NEXT} has begun by the query as it was: 1 rows of it are read, or accepted as lost"
    )
    with pytest.raises(QueryChanged, match="or accepted as lost"):
        goes_on_by_another(state, NEW)


def test_a_changed_query_begins_behind_what_is_accepted_as_lost() -> None:
    """The command was given by the query before: of a topic that came since it says nothing."""
    state = changed()
    entries = [*BEGUN, SEALED, claim(4, 2, begins=state.genesis)]
    after = folded(*gone_on(entries, state.end, losing(ends(9, 0, 9), session=NEXT), then=THIRD))
    assert (after.end, after.session.start) == ({"a": [9, 5], "c": [7]}, state.end)
    assert after.lost_to == {"a": [9, 0], "c": []}


# --- the driver ------------------------------------------------------------------------------


def claimed(
    state: JournalState, topics: list[Topic], query_: Genesis | None
) -> tuple[protocol.Driver, list[protocol.Instruction]]:
    driver, _ = protocol.start("host/2", "started", query=query_)
    applied = dict.fromkeys(("results", "spill", "quarantine", "statistics"), state.epoch)
    return protocol.step(driver, protocol.JournalRead([], applied, topics, snapshot=state))


def test_a_claim_changes_the_query_where_it_may() -> None:
    driver, [append] = claimed(AT_REST, [TOPICS[0], C], wanted())
    assert isinstance(append, protocol.Append)
    assert append.entry == claim(4, 2, driver="host/2", begins=with_journal(AT_REST, wanted()))
    driver, _ = protocol.step(driver, protocol.Appended())
    assert driver.state is not None
    assert driver.state.genesis.query == NEW.fingerprint


def test_rows_that_came_in_between_end_the_driver() -> None:
    """The one that was to be relieved has read on: nothing is claimed."""
    driver, [append] = claimed(AT_REST, [TOPICS[0], C], wanted())
    driver, [read] = protocol.step(driver, protocol.Conflict())
    assert isinstance(append, protocol.Append)
    assert read == protocol.ReadJournal(3)
    more = epoch(4, 2, ends(5, 5, 6), session=NEXT)
    event = protocol.JournalRead([more], {"results": 2}, [TOPICS[0], C])
    _, [end] = protocol.step(driver, event)
    assert end == protocol.End(
        f"the query has changed, but {NEXT} has begun by the query as it was: 1 rows of it are "
        "read",
        fenced=False,
    )


def test_a_topic_that_both_read_is_the_same() -> None:
    anew = Topic(name="a", id="other", partitions=2)
    _, [end] = claimed(AT_REST, [anew, C], wanted())
    assert isinstance(end, protocol.End)
    assert "topic a was deleted and created again" in end.reason


def test_a_claim_of_the_same_query_says_its_text_once() -> None:
    lacks = replace(AT_REST, genesis=genesis(query=OLD.fingerprint))
    knows = genesis(query=OLD.fingerprint, text=OLD.text)
    for state, text in ((lacks, OLD.text), (AT_REST, None)):
        _, [append] = claimed(state, list(TOPICS), knows)
        assert isinstance(append, protocol.Append)
        assert append.entry == claim(4, 2, driver="host/2", text=text)


# --- whose query ----------------------------------------------------------------------------


def test_each_session_has_its_query() -> None:
    state = changed()
    assert session_query(state, DAY).fingerprint == OLD.fingerprint
    assert session_query(state, NEXT).fingerprint == NEW.fingerprint
    assert session_query(state, DAY, OLD) is OLD
    assert session_query(state, DAY, NEW).fingerprint == OLD.fingerprint


def test_a_query_whose_text_is_not_kept() -> None:
    bare = genesis(query=OLD.fingerprint)
    assert kept_query(bare, OLD) is OLD
    with pytest.raises(AnotherQuery, match="holds another query's state"):
        kept_query(bare, NEW)
    with pytest.raises(AnotherQuery, match="from before the text of its query was kept"):
        kept_query(bare)
    assert [each.what for each in told_changes(bare, NEW)] == ["fingerprint"]
    assert told_changes(bare, OLD) == []
    odd = genesis(query="sha256:1", text=QueryText(path="/desk/q.toml", text=OLD.text.text))
    with pytest.raises(AnotherQuery, match=r"\(from /desk/q.toml\) means something else"):
        kept_query(odd)


def test_a_warehouse_of_other_topics_is_another_s() -> None:
    other = query(TEXT.format(other="y").replace("a]", "x]").replace('"a"', '"x"'))
    with pytest.raises(QueryChanged, match="none of its topics is one of the query's"):
        goes_on_by_another(AT_REST, other)
    assert goes_on_by_another(AT_REST, NEW)


# --- the end of a session ------------------------------------------------------------------


def test_a_stream_until_a_seal_reads_no_further() -> None:
    state = folded(*BEGUN)
    close = closing(ends(6, 6, 6))
    more = ends(9, 5, 7)
    assert no_further(state, more, [], NEXT, DAY) == more
    assert no_further(state, more, [close], NEXT, DAY) == ends(6, 5, 6)
    assert no_further(state, more, [close], NEXT, NEXT) == more
    # What another driver read beyond it stays read; a new partition's rows are the next day's.
    beyond = folded(*BEGUN, epoch(3, 1, ends(8, 5, 6), seal=seal(ends(6, 6, 6))))
    wider = {"a": [9, 9], "b": [9, 9]}
    assert no_further(beyond, wider, [], NEXT, DAY) == {"a": [8, 6], "b": [6, 0]}
    assert greater(state.end, more) == more


def test_a_seal_of_the_query_before_holds_where_it_says_enough() -> None:
    state = changed()
    [outcome] = obey(state, [closing(ends(9, 9, 9), session=NEXT)], THIRD).outcomes
    assert not outcome.obeyed
    assert "before the query changed, which has more topics now" in outcome.reason
    enough = {**ends(9, 9, 9), "c": [9]}
    obeyed = obey(state, [closing(enough, session=NEXT)], THIRD)
    assert obeyed.accepted is not None
    assert obeyed.accepted.end == {"a": [9, 9], "c": [9]}


# --- the tables -----------------------------------------------------------------------------

NUMBER = pa.field("n", pa.int64(), nullable=False)
SESSION = pa.field("session_date", pa.string(), nullable=False)
FIRST = pa.schema([NUMBER, pa.field("price", pa.float64(), nullable=False), SESSION])
SECOND = pa.schema([NUMBER, pa.field("size", pa.int64(), nullable=False), SESSION])


def a_table(root: Path, schema: pa.Schema = FIRST) -> Table:
    definition = TableDefinition("results", schema, ("session_date",))
    return Table(folder(str(root)), definition, create=True, fsync=False)


def add(table: Table, n: int, schema: pa.Schema, day: str) -> None:
    columns = pa.schema([field for field in schema if field.name != "session_date"])
    rows = pa.Table.from_arrays([pa.array([n], f.type) for f in columns], schema=columns)
    at = {"session_date": day}
    record = write_data_file(table.place, "results", f"{n}.parquet", columns, [rows], at)
    assert record is not None
    table.commit([record], "test", n)


def rows_of(table: Table) -> list[dict[str, object]]:
    found = deltalake.DeltaTable(table.place.path()).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["n"])


def test_columns_come_and_go_and_rows_stay(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    add(table, 1, FIRST, DAY)
    add(table, 2, FIRST, DAY)
    before = deltalake.DeltaTable(str(tmp_path)).metadata()
    table.widen_columns(SECOND)
    add(table, 3, SECOND, NEXT)
    add(table, 4, SECOND, NEXT)
    wanted_rows = [
        {"n": n, "price": float(n) if n < 3 else None, "size": None if n < 3 else n}
        for n in (1, 2, 3, 4)
    ]
    days = {1: DAY, 2: DAY, 3: NEXT, 4: NEXT}
    assert rows_of(table) == [{**row, "session_date": days[row["n"]]} for row in wanted_rows]
    found = deltalake.DeltaTable(str(tmp_path))
    assert {f.name: f.nullable for f in found.schema().fields} == {
        "n": False,
        "price": True,
        "session_date": False,
        "size": True,
    }
    assert (found.metadata().name, found.metadata().configuration) == (
        before.name,
        before.configuration,
    )
    assert (found.protocol().min_reader_version, found.protocol().min_writer_version) == (1, 2)
    # Files of either query become one each, and rows are as they were.
    for day in (DAY, NEXT):
        assert merge(table, [f for f in table.files() if f.partition["session_date"] == day])
    assert rows_of(table) == [{**row, "session_date": days[row["n"]]} for row in wanted_rows]
    # Again is nothing, and so is the way back.
    version = table.version
    for schema in (SECOND, FIRST):
        table.widen_columns(schema)
    assert table.version == version
    with pytest.raises(WrongTable, match="has size, which it should not"):
        table.check_columns(FIRST)


def test_who_opened_the_table_before_merges_files_of_all_columns(tmp_path: Path) -> None:
    """A driver that was frozen, or a maintenance that takes long: nothing of a row goes."""
    earlier = a_table(tmp_path)
    table = a_table(tmp_path)
    table.widen_columns(SECOND)
    add(table, 1, SECOND, NEXT)
    add(table, 2, SECOND, NEXT)
    earlier.refresh()
    assert merge(earlier, earlier.files())
    assert [(row["n"], row["price"], row["size"]) for row in rows_of(table)] == [
        (1, None, 1),
        (2, None, 2),
    ]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (pa.field("price", pa.decimal128(18, 4)), r"has price as double, and the query as decimal"),
        (pa.field("Price", pa.float64()), r"has price, and the query Price, which Delta takes"),
        (pa.field("price", pa.struct([pa.field("x", pa.int64())])), "and the query as struct"),
    ],
)
def test_a_column_keeps_its_type(field: pa.Field, told: str, tmp_path: Path) -> None:
    table = a_table(tmp_path)
    add(table, 1, FIRST, DAY)
    schema = pa.schema([NUMBER, field, SESSION])
    for refused in (lambda: table.widen_columns(schema), lambda: a_table(tmp_path, schema)):
        with pytest.raises(WrongTable, match=told) as error:
            refused()
        assert "leave it out (results.columns)" in str(error.value)
    assert rows_of(table) == [{"n": 1, "price": 1.0, "session_date": DAY}]


def test_parts_of_a_struct_come_and_go() -> None:
    def struct(*fields: tuple[str, str]) -> list[dict[str, object]]:
        parts = [{"name": n, "type": t, "nullable": False, "metadata": {}} for n, t in fields]
        type_ = {"type": "struct", "fields": parts}
        return [{"name": "row", "type": type_, "nullable": True, "metadata": {}}]

    [found] = united(struct(("x", "long"), ("y", "long")), struct(("y", "long"), ("z", "string")))
    assert [(p["name"], p["nullable"]) for p in found["type"]["fields"]] == [
        ("x", True),
        ("y", False),
        ("z", True),
    ]
    with pytest.raises(ColumnConflict, match=r"has row\.x as long, and the query as string"):
        united(struct(("x", "long")), struct(("x", "string")))


def relayed(root: Path, query_: Query) -> None:
    relay_results(
        load_settings(None, {"warehouse.root": str(root)}, {})[0],
        query_,
        "out",
        once=True,
        from_now=False,
        create=None,
        stop=threading.Event(),
        telling=Telling(),
    )


def test_a_relay_does_not_mix_rows_of_two_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they were there before, or come while it runs."""
    journal = new_warehouse(tmp_path / "w", FIRST).journal
    at = "2026-01-05T21:00:00Z"

    def append(*entries: Genesis | Claim | Epoch) -> None:
        for each in entries:
            dated = {name: at for name in ("written_at", "started_at") if hasattr(each, name)}
            journal.append(each.model_copy(update=dated))

    def runs(*_: object, fits: Callable[[], None], **__: object) -> None:
        fits()
        append(claim(4, 2, begins=with_journal(AT_REST, wanted())))
        fits()

    append(*BEGUN, SEALED)
    monkeypatch.setattr("spillway.relay.service.relay", runs)
    for query_ in (OLD, NEW):
        with pytest.raises(QueryChanged, match="a relay could not tell them apart"):
            relayed(tmp_path / "w", query_)


def test_a_relay_asks_before_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    stop = threading.Event()

    class Looking:
        def look(self) -> list[str]:
            told.append("look")
            return next(looks)

        def check(self, _: object, __: object) -> None:
            told.append("checked")

    def delivers(_: object, __: object, kept: SimpleNamespace, step: str) -> SimpleNamespace:
        told.append(step)
        kept.position.append(step)
        return kept

    def fits() -> None:
        told.append("asked")
        if told.count("asked") == 2:
            raise QueryChanged("another one")

    def step_of(position: list[str], seen: list[str]) -> str | None:
        return next((each for each in seen if each not in position), None)

    looks = iter([["one"], ["one", "two"]])
    monkeypatch.setattr(relaying, "POLL_S", 0)
    monkeypatch.setattr(relaying, "next_step", step_of)
    monkeypatch.setattr(relaying, "deliver", delivers)
    kept: Any = SimpleNamespace(position=[], rows=0)
    follower: Any = Looking()
    with pytest.raises(QueryChanged):
        relaying._run(follower, kept, kept, [], False, stop, Telling(), fits)  # type: ignore[arg-type]
    assert told == ["look", "checked", "asked", "one", "look", "checked", "asked"]
