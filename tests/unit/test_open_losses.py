"""Losses that people accept while their session is open: what the stream makes of them."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spillway.engine.join.results import result_schema
from spillway.live.views import overview
from spillway.protocol.deferral import deferred_rows
from spillway.protocol.driver import End
from spillway.protocol.entry import entry_of
from spillway.protocol.losses import (
    gone_from,
    loss_of,
    lost_ranges,
    obey_losses,
    what_is_left,
    without_lost,
)
from spillway.protocol.offsets import greater, partitions
from spillway.protocol.plan import Plan, plan_epoch
from spillway.protocol.recovery import Restore, check_installed
from spillway.protocol.state import JournalState, fold, replay
from spillway.readmodel.waiting import open_loss
from spillway.report import looking
from spillway.report.ends import HeldOffsets
from spillway.report.terminal import loss_texts, render
from spillway.stream.commands import CommandSource
from spillway.stream.driver import Ended
from spillway.stream.run import StreamFailed, Wanted, Watcher
from spillway.stream.service import Stream
from spillway.tables import Warehouse
from spillway_schemas.commands import Command
from spillway_schemas.journal import Epoch, Offsets
from spillway_schemas.losses import AcceptedLoss, LostRange, united
from spillway_schemas.query import load_query
from spillway_schemas.settings import load_settings
from tests import report_journal
from tests.commands import command_of
from tests.integration.spilled_day import SPEC
from tests.protocol_entries import (
    DAY,
    NEXT,
    THIRD,
    claim,
    closing,
    count,
    cut,
    ends,
    epoch,
    genesis,
    report,
    seal,
)

READ = [count("a", 0, 4, 7), count("a", 1, 4, 1), count("b", 0, 4, 2)]
ONE = epoch(2, 0, ends(4, 4, 4), read=READ)


def after(*entries: Epoch) -> JournalState:
    state = replay([genesis(), claim(1, 1), *entries])
    assert state is not None
    return state


def losing(lost_to: Offsets, id_: str = "l", session: str = DAY, **more: Any) -> Command:
    return command_of("accept-loss", id_, session=session, lost_to=lost_to, **more)


def planned(
    state: JournalState, *commands: Command, end: Offsets | None = None, **more: Any
) -> Plan:
    return plan_epoch(state, end or state.end, commands, NEXT, **more)


def journaled(state: JournalState, plan: Plan, **more: Any) -> Epoch:
    reports = [report(slot, plan.epoch, **more) for slot in (0, 1)]
    return entry_of(state, plan, reports, started_at="", written_at="", seconds={})


# --- which losses are obeyed


def test_each_is_answered_and_all_add_up() -> None:
    commands = [
        losing(ends(6, 0, 0), "one", reason="gone", by="ada"),
        losing(ends(5, 0, 0), "less"),
        losing(ends(0, 0, 2), "two", by="bob"),
        losing(ends(9, 9, 9), "next", session=NEXT),
        losing({"other": [7]}, "another topic"),
        closing(ends(9, 9, 9)),
    ]
    found = obey_losses(after(ONE), commands)
    assert found.lost_to == ends(6, 0, 2)
    assert [(each.id, each.obeyed, each.reason, each.by) for each in found.outcomes] == [
        ("one", True, "gone", "ada"),
        ("less", False, "all of it was accepted before", ""),
        ("two", True, "", "bob"),
        ("next", False, f"not the open session: that is {DAY}", ""),
        ("another topic", False, "all of it was accepted before", ""),
    ]


def test_a_loss_of_a_session_that_was_sealed_meanwhile_is_asked_for_again() -> None:
    state = after(ONE)
    plan = planned(state, closing(ends(4, 4, 4)))
    (outcome,) = obey_losses(fold(state, journaled(state, plan)), [losing(ends(1, 0, 0))]).outcomes
    assert not outcome.obeyed
    assert (
        outcome.reason
        == f"{DAY} is sealed: run `spillway accept-loss --session {DAY} --reason ...` again"
    )


def test_what_is_gone_of_what_the_session_may_need() -> None:
    state = after(ONE)
    assert gone_from(state, ends(0, 0, 0)) == {}
    assert gone_from(state, ends(0, 3, 7)) == ends(0, 3, 7)
    accepted = replace(state, lost_to=ends(0, 3, 0))
    assert gone_from(accepted, ends(0, 3, 0)) == {}
    assert gone_from(accepted, ends(0, 4, 7)) == ends(0, 4, 7)
    # A partition that the journal does not know yet, and a topic that is none of its.
    assert gone_from(state, {"a": [0, 0, 5], "b": [0], "c": [9]}) == {"a": [0, 0, 5], "b": [0]}


def test_the_next_sessions_rows_are_read_from_the_end_of_an_epoch_of_this_one() -> None:
    """So that what is read again can be held against the journal: rows before its own are gone,
    too, when they are asked for."""
    accepted = epoch(3, 1, ends(5, 5, 5), seal=seal(ends(6, 6, 6)))
    sealing = planned(after(ONE, accepted), end=ends(7, 7, 7))
    state = fold(after(ONE, accepted), journaled(after(ONE, accepted), sealing))
    assert (state.session.date, state.session.start) == (NEXT, ends(6, 6, 6))
    assert gone_from(state, ends(4, 0, 0)) == {}
    assert gone_from(state, ends(5, 0, 0)) == ends(5, 0, 0)


# --- an epoch


def test_an_epoch_begins_behind_what_was_never_read() -> None:
    state = after(ONE)
    plan = planned(state, losing(ends(7, 0, 3)), end=ends(6, 5, 5))
    assert (plan.start, plan.end) == (ends(7, 4, 4), ends(7, 5, 5))
    entry = journaled(state, plan)
    assert (entry.lost_to, entry.end) == (ends(7, 0, 3), ends(7, 5, 5))
    state = fold(state, entry)
    assert (state.end, state.lost_to) == (ends(7, 5, 5), ends(7, 0, 3))
    further = planned(state, end=ends(9, 9, 9))
    assert (further.start, further.lost_to) == (ends(7, 5, 5), ends(7, 0, 3))
    assert journaled(state, further).lost_to == {}


def test_a_partition_that_the_topic_has_gained_may_have_lost_rows() -> None:
    plan = planned(after(ONE), losing({"a": [0, 0, 5], "b": [0]}))
    wider = {"a": [4, 4, 5], "b": [4]}
    assert (plan.start, plan.end) == (wider, wider)


def test_what_was_read_is_left_out_where_it_is_read_again() -> None:
    state = after(ONE, epoch(3, 1, ends(8, 8, 8), read=READ))
    plan = planned(state, losing(ends(6, 0, 0)), lost=frozenset({0}))
    assert plan.restore is not None
    assert (plan.restore.read_from, plan.restore.read_to) == (ends(6, 0, 0), ends(8, 8, 8))
    assert plan.restore.lossy == {("a", 0)}
    # Slots had more rows in memory than what is left gives.
    check_installed(state, plan.restore, {0: 0})
    # A partition that is read from behind the loss on is held against the journal.
    cuts = [cut(0, 0), cut(1, 0)]
    state = after(
        ONE.model_copy(update={"cuts": cuts}), epoch(3, 1, ends(8, 8, 8), lost_to=ends(4, 2, 0))
    )
    again = planned(state, lost=frozenset({0})).restore
    assert again is not None
    assert (again.read_from, again.lossy) == (ends(4, 4, 4), frozenset())


def test_of_what_is_left_to_cleanup_only_rows_that_are_there_count() -> None:
    state = after(ONE)
    many = planned(state, lost=frozenset({0}), most_restored_rows=11)
    assert many.deferred
    few = planned(state, losing(ends(3, 0, 0)), lost=frozenset({0}), most_restored_rows=11)
    assert few.restore is not None


def test_nothing_is_changed_where_nothing_is_lost() -> None:
    again = planned(after(ONE), lost=frozenset({0})).restore
    assert again is not None
    assert what_is_left(again, {}) is again
    assert what_is_left(again, ends(0, 0, 0)) is again


# --- which sessions have lost what


def test_a_seal_may_lie_among_lost_rows() -> None:
    """Rows below its end were of one session, the others of the next: both have lost some."""
    state = after(ONE)
    accepted = losing(ends(9, 0, 0), reason="gone", by="ada")
    plan = planned(state, closing(ends(6, 4, 4)), accepted)
    assert plan.sealing
    entry = journaled(state, plan)
    assert entry.sealed is not None
    assert entry.sealed.lost_to == ends(6, 0, 0)
    state = fold(state, entry)
    assert (state.session.date, state.lost_to) == (NEXT, ends(9, 0, 0))
    close = closing(ends(9, 5, 5), "c", session=NEXT)
    plan = plan_epoch(state, ends(9, 5, 5), [close], THIRD)
    last = journaled(state, plan)
    assert last.sealed is not None
    assert last.sealed.lost_to == ends(9, 0, 0)
    assert fold(state, last).lost_to == {}, "the third has lost nothing"
    entries = [genesis(), claim(1, 1), ONE, entry, last]
    for sealed, begin, end in ((entry.sealed, 0, 6), (last.sealed, 6, 9)):
        loss = loss_of(genesis(), sealed, entries)
        assert loss is not None
        assert loss.ranges == [LostRange(topic="a", partition=0, begin=begin, end=end)]
        assert (loss.reason, loss.by) == ("gone", "ada")


def test_a_session_behind_the_loss_has_lost_nothing() -> None:
    accepted = epoch(3, 1, ends(4, 4, 4), lost_to=ends(3, 0, 0))
    state = after(ONE, accepted)
    plan = planned(state, closing(ends(4, 4, 4)), end=ends(5, 5, 5))
    entry = journaled(state, plan)
    assert entry.sealed is not None
    assert entry.sealed.lost_to == ends(3, 0, 0)
    assert fold(state, entry).lost_to == {}


def test_who_accepted_what_and_why() -> None:
    outcomes = [
        obey_losses(after(ONE), [losing(ends(5, 0, 0), id_, reason=why, by=by)]).outcomes[0]
        for id_, why, by in (("1", "late", "ada"), ("2", "later", "bob"), ("3", "late", "ada"))
    ]
    entries: list[Any] = [genesis(), claim(1, 1), ONE]
    for n, outcome in enumerate(outcomes, 1):
        lost_to = ends(5 + n, 0, 0)
        entries.append(epoch(2 + n, n, ends(9, 9, 9), lost_to=lost_to, commands=[outcome]))
    state = replay(entries)
    assert state is not None
    entry = journaled(state, planned(state, closing(ends(9, 9, 9))))
    assert entry.sealed is not None
    assert loss_of(genesis(), entry.sealed, [*entries, entry]) == AcceptedLoss(
        ranges=[LostRange(topic="a", partition=0, begin=0, end=8)],
        reason="late; later",
        by="ada, bob",
    )
    assert loss_of(genesis(), entry.sealed.model_copy(update={"lost_to": {}}), []) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), *[st.integers(0, 9)] * 2)))
def test_united_ranges_are_the_same_offsets_each_once(
    given_: list[tuple[str, int, int, int]],
) -> None:
    ranges = [
        LostRange(topic=topic, partition=partition, begin=begin, end=begin + length + 1)
        for topic, partition, begin, length in given_
    ]

    def offsets(some: Sequence[LostRange]) -> list[tuple[str, int, int]]:
        return [(r.topic, r.partition, o) for r in some for o in range(r.begin, r.end)]

    found = united(ranges)
    assert offsets(found) == sorted(set(offsets(ranges)))
    assert len(found) == len(set(offsets(found)) - {(t, p, o + 1) for t, p, o in offsets(found)})


def test_cleanup_does_without_what_was_accepted_before_the_seal() -> None:
    lost = epoch(
        3, 1, ends(5, 5, 5), deferred=[cut(0, 0)], deferred_slots=[0], lost_to=ends(2, 0, 0)
    )
    state = after(ONE, lost)
    entry = journaled(state, planned(state, closing(ends(5, 5, 5))))
    entries = [genesis(), claim(1, 1), ONE, lost, entry]
    assert entry.sealed is not None
    again = deferred_rows(genesis(), entry.sealed, entries)
    loss = loss_of(genesis(), entry.sealed, entries)
    assert again is not None
    assert loss is not None
    left = without_lost(again, loss.ranges)
    assert (left.read_from, left.lossy) == (ends(2, 0, 0), {("a", 0)})


@pytest.mark.parametrize(
    ("begin", "end", "lost_to", "ranges"),
    [
        (ends(0, 0, 0), ends(9, 9, 9), {}, []),
        (ends(0, 0, 0), ends(9, 9, 9), ends(3, 0, 12), [("a", 0, 0, 3), ("b", 0, 0, 9)]),
        (ends(3, 0, 0), ends(9, 9, 9), ends(3, 0, 0), []),
        (ends(3, 0, 0), ends(3, 9, 9), ends(7, 0, 0), []),
        ({"a": [2]}, {"a": [9, 9]}, {"a": [4, 1]}, [("a", 0, 2, 4), ("a", 1, 0, 1)]),
    ],
)
def test_lost_ranges(
    begin: Offsets, end: Offsets, lost_to: Offsets, ranges: Sequence[tuple[str, int, int, int]]
) -> None:
    found = lost_ranges(begin, end, lost_to)
    assert [(each.topic, each.partition, each.begin, each.end) for each in found] == ranges


@given(
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 12)] * 3),
)
def test_what_is_left_are_the_rows_that_are_not_lost(
    begin: tuple[int, int, int], more: tuple[int, int, int], lost_to: tuple[int, int, int]
) -> None:
    begins, gone = ends(*begin), ends(*lost_to)
    end = ends(*(first + n for first, n in zip(begin, more, strict=True)))
    wanted = {(t, p, o) for t, p, stop in partitions(end) for o in range(begins[t][p], stop)}
    lost = {(t, p, o) for t, p, o in wanted if o < gone[t][p]}
    found = lost_ranges(begins, end, gone)
    assert lost == {
        (each.topic, each.partition, o) for each in found for o in range(each.begin, each.end)
    }
    again = Restore(frozenset({0}), begins, end, (), ())
    left = what_is_left(again, gone)
    assert wanted - lost == {
        (t, p, o) for t, p, stop in partitions(end) for o in range(left.read_from[t][p], stop)
    }
    assert left.lossy == {(t, p) for t, p, _ in lost}


@pytest.mark.parametrize(
    ("begin", "end", "read_from", "lossy"),
    [
        (0, 2, 2, False),
        (0, 3, 3, True),
        (9, 15, 10, True),
        (10, 15, 2, False),
    ],
)
def test_what_was_lost_of_a_session_may_begin_before_and_end_behind_what_is_read(
    begin: int, end: int, read_from: int, lossy: bool
) -> None:
    again = Restore(frozenset({0}), ends(2, 0, 0), ends(10, 4, 4), (), ())
    left = without_lost(again, [LostRange(topic="a", partition=0, begin=begin, end=end)])
    assert left.read_from == ends(read_from, 0, 0)
    assert left.lossy == ({("a", 0)} if lossy else frozenset())


# --- the stream


def test_a_loss_waits_until_no_query_runs(tmp_path: Any) -> None:
    """A query that runs reads on where it is: behind rows that are gone, the next one begins."""
    warehouse = Warehouse(str(tmp_path / "w"), result_schema(SPEC), fsync=False)
    settings = load_settings(None, {"session.boundary": "command"}, environ={})[0]
    source = CommandSource(settings, warehouse.commands, ["a", "b"], lambda: 0)
    state = after(ONE)
    warehouse.commands.append(closing(ends(9, 9, 9)))
    assert [each.id for each in source.waiting(state)] == ["close"]
    assert (source.loss_waits(state), source.read_n) == (False, 0)
    warehouse.commands.append(losing(ends(5, 0, 0)))
    assert [each.id for each in source.waiting(state)] == ["close"]
    # What is held back must not count as given: a driver that dies would pass it over.
    assert (source.loss_waits(state), source.read_n) == (True, -1)
    assert [each.id for each in source.waiting(state, losses=True)] == ["close", "l"]
    assert (source.loss_waits(state), source.read_n) == (True, 1)
    answered = replace(state, seen=frozenset({"close", "l"}))
    assert not source.loss_waits(answered), "before anybody has looked again"
    assert source.waiting(answered) == []
    assert (source.loss_waits(state), source.read_n) == (False, 1)


class Query:
    """A query that notes when it is started and stopped, and is done after some looks at it."""

    def __init__(self, told: list[str], looks: int) -> None:
        self.told, self.looks = told, looks
        self.runs, self.busy, self.left_rows = False, False, False
        self.has_failed_epoch = self.has_refused = False
        self.failure: BaseException | None = None
        self.checkpoint = Path("checkpoints")
        self.on_look: Callable[[int], None] = lambda _: None

    def start(self, end: Offsets) -> None:
        assert not self.runs
        self.told.append(f"start at {end['a'][0]}")
        self.runs, self.failure, self.left_rows = True, None, False

    def stop(self) -> None:
        self.told.append("stop")
        self.runs = False

    @property
    def is_active(self) -> bool:
        self.looks -= 1
        self.on_look(self.looks)
        return self.runs

    @contextmanager
    def at_rest(self) -> Iterator[bool]:
        yield not self.busy


class Driver:
    """A driver that obeys what it is offered."""

    def __init__(self, told: list[str]) -> None:
        self.state, self.told = after(ONE), told

    def look(self) -> None:
        """Nobody else is there."""

    def epoch(self, end: Offsets, commands: Any, following: str, **more: Any) -> None:
        ids = [each.id for each in commands]
        self.told.append(f"epoch {', '.join(ids)} ({more['commands_n']})")
        lost_to = obey_losses(self.state, commands).lost_to
        self.state = replace(
            self.state,
            end=greater(end, lost_to),
            lost_to=lost_to,
            seen=self.state.seen | set(ids),
        )


@dataclass
class Running:
    """A stream without Spark, its query, and what it does."""

    stream: Stream
    query: Query
    told: list[str]

    def ask(self, *commands: Command) -> None:
        self.stream.warehouse.commands.append(*commands)

    def run(self) -> list[str]:
        self.stream._loop(None)
        return self.told


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    root = {"warehouse.root": str(tmp_path / "w"), "stream.trigger_s": "0"}
    settings = load_settings(None, {**root, "session.boundary": "command"}, environ={})[0]
    told: list[str] = []
    watcher = Watcher()
    query = Query(told, looks=4)
    query.on_look = lambda left: watcher.stop.set() if left <= 0 else None
    monkeypatch.setattr("spillway.stream.service.SupervisedQuery", lambda *_, **__: query)
    monkeypatch.setattr("spillway.stream.service.POLL_S", 0)
    # There is no broker to ask whether a topic was deleted.
    monkeypatch.setattr("spillway.stream.service.deleted", lambda *_: None)
    stream = Stream(settings, load_query(settings.query), Wanted(), watcher, lambda: 0)
    stream.driver = Driver(told)  # type: ignore[assignment]
    return Running(stream, query, told)


def test_a_stream_begins_behind_a_loss_that_waits(running: Running) -> None:
    running.ask(closing(ends(9, 9, 9)), losing(ends(7, 0, 0)))
    assert running.run() == ["epoch close, l (1)", "start at 7", "stop"]


def test_rows_that_a_batch_had_left_behind_a_seal_are_read_once_that_is_withdrawn(
    running: Running,
) -> None:
    """Nothing else makes Spark look back: they would wait for new ones."""
    done = running.query.on_look

    def withdrawn(left: int) -> None:
        running.query.left_rows = left == 3
        done(left)

    running.query.on_look = withdrawn
    assert running.run() == ["start at 4", "stop", "start at 4", "stop"]


def test_a_batch_under_way_is_not_a_loss_that_waits(running: Running) -> None:
    """The table is not read again before it has ended: the loss that was obeyed must not count."""
    running.ask(losing(ends(7, 0, 0)))
    running.query.busy = True
    assert running.run() == ["epoch l (0)", "start at 7", "stop"]


def test_a_query_that_runs_is_stopped_for_a_loss_and_started_behind_it(running: Running) -> None:
    done = running.query.on_look

    def asked(left: int) -> None:
        if left == 2:
            running.ask(closing(ends(9, 9, 9)), losing(ends(7, 0, 0)))
        done(left)

    running.query.on_look = asked
    assert running.run() == [
        "start at 4",
        "epoch close (-1)",
        "stop",
        "epoch l (1)",
        "start at 7",
        "stop",
    ]


def test_while_intake_is_held_a_loss_waits_for_the_next_start(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()

    def held(_: JournalState) -> str:
        n = next(looks)
        if n == 3:
            running.ask(closing(ends(9, 9, 9)), losing(ends(7, 0, 0)))
        if n == 9:
            running.stream.watcher.stop.set()
        return "it has as many as it may have"

    monkeypatch.setattr("spillway.stream.service.intake_held", held)
    monkeypatch.setattr(running.stream, "_look_at_topics", lambda: None)
    assert running.run() == ["stop", "epoch close (-1)", "stop"]
    running.told.clear()
    running.stream.watcher.stop.clear()
    looks = itertools.count(8)
    assert running.run() == ["epoch l (1)", "stop"]


def test_a_query_that_rows_are_gone_for_goes_on_when_that_is_accepted(running: Running) -> None:
    done = running.query.on_look

    def fails(left: int) -> None:
        if left == 2:
            running.query.runs = False
            running.query.failure = RuntimeError("[KAFKA_DATA_LOSS] gone")
            running.ask(losing(ends(7, 0, 0)))
        done(left)

    running.query.on_look = fails
    assert running.run() == ["start at 4", "epoch l (0)", "start at 7", "stop"]


def test_a_query_that_rows_are_gone_for_ends_the_stream_otherwise(running: Running) -> None:
    done = running.query.on_look

    def fails(left: int) -> None:
        if left == 2:
            running.query.runs = False
            running.query.failure = RuntimeError("[KAFKA_DATA_LOSS] gone")
        done(left)

    running.query.on_look = fails
    with pytest.raises(StreamFailed, match="Start it again: it says which rows are gone"):
        running.run()


def test_a_driver_that_has_ended_accepts_nothing(running: Running) -> None:
    """Another one has taken over, or its epoch has failed: the next start obeys."""
    done = running.query.on_look

    def ends_(left: int) -> None:
        if left == 2:
            running.query.runs = False
            running.query.failure = Ended(End("an epoch has failed", fenced=False))
            running.ask(losing(ends(7, 0, 0)))
        done(left)

    running.query.on_look = ends_
    with pytest.raises(Ended):
        running.run()
    assert running.told == ["start at 4"]


# --- what people see


def test_what_is_gone_and_what_was_accepted_are_told_apart() -> None:
    state = after(ONE, epoch(3, 1, ends(4, 4, 4), lost_to=ends(2, 0, 0)))
    found = open_loss(state, [losing(ends(2, 3, 0))], ends(3, 4, 9))
    assert found is not None
    told = {
        name: [str(each) for each in getattr(found, name)] for name in ("gone", "waits", "accepted")
    }
    assert told == {
        "gone": ["a/0 from offset 2 to 3", "a/1 from offset 3 to 4", "b/0 from offset 0 to 9"],
        "waits": ["a/1 from offset 0 to 3"],
        "accepted": ["a/0 from offset 0 to 2"],
    }
    assert found.never_read == 5
    assert loss_texts(found) == [
        "a/0 from offset 0 to 2: accepted as lost, the stream does without it",
        "a/1 from offset 0 to 3: accepted as lost, waits for the stream",
        "a/0 from offset 2 to 3, a/1 from offset 3 to 4, b/0 from offset 0 to 9: Kafka does not "
        "hold it any more, 5 offsets of it before they were read: the stream cannot go on. Where "
        f"nobody has it: spillway accept-loss --session {DAY} --reason ...",
    ]


def test_what_was_read_does_not_stop_the_stream() -> None:
    found = open_loss(after(ONE), [], ends(3, 0, 0))
    assert found is not None
    assert found.never_read == 0
    assert "nor the day proved" in loss_texts(found)[0]
    many = found.model_copy(update={"gone": found.gone * 6})
    assert "to 3 and 2 more: Kafka" in loss_texts(many)[0]


def test_nothing_is_told_where_nothing_of_the_session_is_lost() -> None:
    assert open_loss(after(ONE), [], None) is None
    assert open_loss(after(ONE), [], ends(0, 0, 0)) is None
    state = after(ONE)
    accepted = epoch(3, 1, ends(5, 5, 5), seal=seal(ends(6, 6, 6)))
    state = fold(state, accepted)
    state = fold(state, journaled(state, planned(state, end=ends(7, 7, 7))))
    assert open_loss(state, [], ends(6, 6, 6)) is None, "rows of the session before"
    assert open_loss(state, [], ends(7, 6, 6)) is not None


def test_status_shows_a_loss_and_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = report_journal.make_day(16)
    warehouse = report_journal.open_warehouse(str(tmp_path / "w"))
    report_journal.fill_journal(warehouse, made.entries)
    settings = load_settings(None, {"warehouse.root": str(tmp_path / "w")}, environ={})[0]
    topic = sorted(made.end)[0]
    first = {name: [0] * len(ends_) for name, ends_ in made.end.items()}
    first[topic][0] = made.end[topic][0] + 3
    monkeypatch.setattr(looking, "held_offsets", lambda *_: HeldOffsets(first, made.end))

    def head() -> str:
        found = looking.Looker(settings).look()
        out = Console(file=io.StringIO(), width=200)
        out.print(render(found, out), highlight=False)
        return out.file.getvalue()  # type: ignore[attr-defined]

    lost = f"{topic}/0 from offset 10 to {first[topic][0]:,}"
    assert f"gone       {lost}: Kafka does not hold it any more, 3 offsets of it" in head()
    state = warehouse.journal.state()
    assert state is not None
    warehouse.commands.append(losing(first, reason="retention", by="ada"))
    assert f"{lost}: accepted as lost, waits for the stream" in head()
    assert f"acceptance of a loss, session {DAY} by ada" in head()
    plan = plan_epoch(state, state.end, [losing(first, reason="retention", by="ada")], NEXT)
    slots = [report(slot, plan.epoch) for slot in state.slots]
    at = "2026-01-05T20:00:00Z"
    warehouse.journal.append(
        entry_of(state, plan, slots, started_at=at, written_at=at, seconds={"job": 0.1})
    )
    assert f"{lost}: accepted as lost, the stream does without it" in head()
    assert "loss accepted 2026-01-05 20:00:00 UTC, asked for by ada: retention" in head()
    found = looking.Looker(settings).look()
    shown = overview(found, {}, made.now(), trigger_s=2.0, cleaning={}, closes_ms={})
    assert [(each.by, each.reason) for each in shown.accepted_losses] == [("ada", "retention")]
