"""`results.max_per_session`: when intake is held, what goes on meanwhile, and what ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from spillway.engine.groups import GroupMap
from spillway.kafka.client import TIMEOUT_S, KafkaUnavailable
from spillway.protocol.driver import (
    Append,
    Appended,
    Driver,
    JournalRead,
    Look,
    Looked,
    Offered,
    Ready,
    RunJob,
    start,
    step,
)
from spillway.protocol.failing import JobFailed
from spillway.protocol.limit import intake_held, limit_ratio
from spillway.protocol.snapshot import snapshot_of, state_of
from spillway.protocol.state import JournalState, replay
from spillway.stream import failures, service, supervised
from spillway.stream.run import StreamFailed, Wanted, Watcher
from spillway.stream.service import Stream
from spillway.stream.supervised import EpochHooks, SupervisedQuery
from spillway.stream.tasks import step_tasks
from spillway_schemas.journal import Claim, Epoch, Genesis
from spillway_schemas.query import load_query
from spillway_schemas.settings import load_settings
from tests.protocol_entries import (
    DAY,
    NEXT,
    TOPICS,
    claim,
    closing,
    ends,
    epoch,
    genesis,
    seal,
    sealed,
    withdrawing,
)
from tests.unit.test_stream_tasks import SETTINGS

LIMIT = 1_000


def state_of_day(*more: Claim | Epoch, results: int = LIMIT, limit: int = LIMIT) -> JournalState:
    """After one epoch with so many results, and what follows."""
    entries: list[Genesis | Claim | Epoch] = [
        genesis(),
        claim(1, 1, max_results=limit),
        epoch(2, 0, ends(4, 4, 4), results={DAY: results}),
        *more,
    ]
    state = replay(entries)
    assert state is not None
    return state


def driver_of(limit: int, *more: Claim | Epoch, results: int = LIMIT) -> Driver:
    """A driver that has claimed with a limit."""
    entries = [genesis(), claim(1, 1), epoch(2, 0, ends(4, 4, 4), results={DAY: results}), *more]
    now, _ = start("host/2", "started")
    now, appended = step(now, JournalRead(entries, {}, TOPICS, max_results=limit))
    [append] = appended
    assert isinstance(append, Append)
    assert isinstance(append.entry, Claim)
    assert append.entry.max_results == limit
    now, instructions = step(now, Appended())
    assert instructions == [Ready()]
    return now


# --- when


@pytest.mark.parametrize(
    ("results", "limit", "held"),
    [
        (LIMIT - 1, LIMIT, False),
        (LIMIT, LIMIT, True),
        (LIMIT + 7, LIMIT, True),
        (10**12, 0, False),
    ],
)
def test_intake_is_held_from_the_limit_on(results: int, limit: int, *, held: bool) -> None:
    state = state_of_day(results=results, limit=limit)
    assert bool(intake_held(state)) == held
    assert limit_ratio(state) == (results / limit if limit else None)


def test_it_says_what_there_is_to_do() -> None:
    told = intake_held(state_of_day())
    assert told == (
        f"{DAY} has 1,000 results, and results.max_per_session is 1,000: no more rows are read. "
        "They wait in Kafka, and nothing is lost. Start the stream again with a higher limit, or "
        f"end the session here with `spillway seal --session {DAY} --at read`"
    )
    ending = epoch(3, 1, ends(4, 4, 4), seal=seal(ends(9, 9, 9)))
    asked = f"`spillway seal --session {DAY}"
    assert intake_held(state_of_day(ending)).endswith(
        f"{asked} --withdraw`, then {asked} --at read`"
    ), "the seal lies beyond what may be read"
    reached = epoch(3, 1, ends(4, 4, 4), seal=seal(ends(4, 4, 4)))
    assert intake_held(state_of_day(reached)).endswith("with a higher limit"), "it ends by itself"
    later = epoch(3, 1, ends(9, 4, 4), seal=seal(ends(6, 6, 6)), results={DAY: 1, NEXT: LIMIT})
    next_is_full = state_of_day(later, results=1)
    assert limit_ratio(next_is_full) == 1, "whichever session has most"
    told = intake_held(next_is_full)
    assert told.startswith(f"{NEXT} has 1,000 results")
    assert told.endswith(f"{DAY} is not sealed yet, so {NEXT} cannot be")


def test_the_next_session_begins_with_none() -> None:
    over = epoch(
        3,
        1,
        ends(4, 4, 4),
        seal=seal(ends(4, 4, 4)),
        sealed=sealed(ends(4, 4, 4), 1, results=LIMIT),
        session=NEXT,
    )
    state = state_of_day(over)
    assert (state.session.date, intake_held(state)) == (NEXT, "")


def test_the_last_claim_says_how_many() -> None:
    raised = claim(3, 2, max_results=LIMIT + 1)
    assert intake_held(state_of_day(raised)) == ""
    lowered = claim(4, 3, max_results=LIMIT)
    assert intake_held(state_of_day(raised, lowered))
    assert intake_held(state_of_day(raised, claim(4, 3))) == "", "no limit is none"


def test_a_snapshot_keeps_it() -> None:
    state = state_of_day()
    assert state_of(snapshot_of(state, "digest")) == state
    assert state.max_results == LIMIT


# --- what goes on


def test_commands_are_obeyed_without_rows() -> None:
    """A seal at where the stream stands ends the session; with rows it would be an error."""
    held = driver_of(LIMIT)
    asked = Offered(ends(4, 4, 4), [closing(ends(0, 0, 0))], NEXT, "now")
    _, [run] = step(held, asked)
    assert isinstance(run, RunJob)
    assert (run.plan.sealing, run.plan.end) == (True, ends(4, 4, 4))
    _, [run] = step(held, replace(asked, commands=[closing(ends(9, 9, 9))]))
    assert isinstance(run, RunJob)
    assert (run.plan.sealing, run.plan.seal) == (False, seal(ends(9, 9, 9)))
    pending = epoch(3, 1, ends(4, 4, 4), seal=seal(ends(9, 9, 9)))
    _, [run] = step(driver_of(LIMIT, pending), replace(asked, commands=[withdrawing()]))
    assert isinstance(run, RunJob)
    assert run.plan.withdrawn == "close"


@pytest.mark.parametrize(("limit", "back"), [(LIMIT, False), (LIMIT + 1, True), (0, True)])
def test_nothing_comes_back_beyond_the_limit(limit: int, back: bool) -> None:
    """An epoch without rows gives no result; with a higher limit spilled generations come again,
    and another attempt is told the same. The policy stays: it says what is remembered meanwhile."""
    driver, [first] = step(driver_of(limit), Offered(ends(4, 4, 4), [], NEXT, "now"))
    driver, [look] = step(driver, JobFailed("a worker is gone", "lost"))
    assert look == Look()
    _, [again] = step(driver, Looked([]))
    settings = replace(SETTINGS, reactivation="rotation")
    for run in (first, again):
        assert isinstance(run, RunJob)
        tasks = step_tasks(settings, run.plan, GroupMap(run.plan.groups), now_ms=0)
        assert {task.may_return for task in tasks.values()} == {back}
        assert {task.reactivation for task in tasks.values()} == {"rotation"}


def test_new_partitions_are_no_rows() -> None:
    wider = {"a": [4, 4, 0], "b": [4]}
    _, [run] = step(driver_of(LIMIT), Offered(wider, [], NEXT, "now"))
    assert isinstance(run, RunJob)
    with pytest.raises(ValueError, match="rows were offered that may not be read"):
        step(driver_of(LIMIT), Offered({"a": [4, 4, 1], "b": [4]}, [], NEXT, "now"))


def test_below_the_limit_and_above_a_lower_one_rows_are_read() -> None:
    for driver in (driver_of(LIMIT, results=LIMIT - 1), driver_of(LIMIT + 1), driver_of(0)):
        _, [run] = step(driver, Offered(ends(9, 9, 9), [], NEXT, "now"))
        assert isinstance(run, RunJob)
        assert run.plan.end == ends(9, 9, 9)


# --- the stream


class FakeQuery:
    """Spark's query: what was done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.has_failed_epoch = False
        self.has_refused = False

    def stop(self) -> None:
        self.done.append("stop")

    def start(self, end: Any) -> None:
        self.done.append(end)
        self.has_refused = False


@pytest.fixture
def troubles() -> list[str]:
    return []


@pytest.fixture
def stream(tmp_path: Path, troubles: list[str]) -> Stream:
    flags = {"warehouse.root": str(tmp_path / "w"), "stream.trigger_s": "0.01"}
    settings = load_settings(None, flags)[0]
    watcher = Watcher(on_trouble=troubles.append)
    made = Stream(settings, load_query("symbol"), Wanted(), watcher, lambda: 0)
    made.driver = MagicMock(state=state_of_day())
    return made


def test_the_query_stops_while_intake_is_held_and_begins_at_the_journals_end(
    stream: Stream, troubles: list[str]
) -> None:
    query: Any = FakeQuery()
    assert stream._holds(query)
    assert stream._holds(query)
    assert query.done == ["stop"]
    assert troubles == [intake_held(state_of_day())], "it is said once"
    stream.driver.state = state_of_day(results=1)  # type: ignore[misc]
    assert not stream._holds(query)
    assert not stream._holds(query)
    assert query.done == ["stop", "stop", ends(4, 4, 4)]


def test_an_epoch_that_failed_is_not_forgotten_behind_the_limit(
    stream: Stream, troubles: list[str]
) -> None:
    query: Any = FakeQuery()
    query.has_failed_epoch = True
    assert not stream._holds(query)
    assert (query.done, troubles) == (["stop"], [])


def test_nor_is_it_behind_a_batch_that_was_refused(stream: Stream) -> None:
    """Batches are read again as soon as intake is held no more; this one's epoch has failed."""
    query: Any = FakeQuery()
    query.has_refused = query.has_failed_epoch = True
    stream.driver.state = state_of_day(results=1)  # type: ignore[misc]
    assert not stream._holds(query)
    assert query.done == ["stop"]


@pytest.mark.parametrize("is_there", [True, False])
def test_spark_is_told_where_a_new_partition_begins(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """It was added while a batch was read: Spark has not seen it, and wants to know of all."""
    one, other = ends(4, 4, 4)
    wider = [TOPICS[0], TOPICS[1].model_copy(update={"partitions": 2})]

    @contextlib.contextmanager
    def cluster(*_: object) -> Iterator[Any]:
        if not is_there:
            raise KafkaUnavailable("nobody answers")
        yield MagicMock(topics=lambda names: wider)

    query: Any = FakeQuery()
    monkeypatch.setattr(service, "listens", lambda *_: True)
    monkeypatch.setattr(service, "cluster", cluster)
    stream._start(query)
    assert query.done == [{one: [4, 4], other: [4, 0] if is_there else [4]}]


def test_a_batch_that_was_refused_is_read_again(stream: Stream) -> None:
    """The session was sealed before the main thread saw that intake was held."""
    query: Any = FakeQuery()
    stream.driver.state = state_of_day(results=1)  # type: ignore[misc]
    assert not stream._holds(query)
    assert query.done == []
    query.has_refused = True
    assert not stream._holds(query)
    assert query.done == ["stop", ends(4, 4, 4)]


def test_a_deleted_topic_is_noticed_while_nobody_reads(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one look: a broker that has just started does not know it yet."""
    anew = [TOPICS[0], TOPICS[1].model_copy(update={"id": "anew"})]
    seen = iter([anew, list(TOPICS), None, anew, anew])
    asked = 0

    @contextlib.contextmanager
    def cluster(*_: object) -> Iterator[Any]:
        nonlocal asked
        asked += 1
        if (now := next(seen)) is None:
            raise KafkaUnavailable("nobody answers")
        yield MagicMock(topics=lambda _: now)

    made = FakeQuery()
    monkeypatch.setattr(service, "TOPICS_S", 0.0)
    monkeypatch.setattr(service, "SupervisedQuery", lambda *_, **__: made)
    monkeypatch.setattr(service, "listens", lambda *_: True)
    monkeypatch.setattr(failures, "cluster", cluster)
    monkeypatch.setattr(stream, "_idle_epoch", lambda: None)
    stream.commands = MagicMock(loss_waits=lambda _: False)
    with pytest.raises(StreamFailed) as ended:
        stream._loop(None)
    assert "topic b was deleted and created again (its id was id-b, now anew)" in str(ended.value)
    assert "`A topic was deleted`" in str(ended.value)
    assert asked == 5
    assert made.done == ["stop"]


def test_topics_are_not_asked_for_all_the_time_and_not_where_nobody_listens(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(service, "listens", lambda *_: asked.append("listens"))
    monkeypatch.setattr(service, "topic_gone", lambda *_: asked.append("topics"))
    for _ in range(3):
        stream._look_at_topics()
    assert asked == ["listens"]
    monkeypatch.setattr(service, "listens", lambda *_: True)
    monkeypatch.setattr(service, "TOPICS_S", 0.0)
    stream._look_at_topics()
    assert asked == ["listens", "topics"]


def test_a_topic_is_not_gone_that_two_starts_of_a_broker_did_not_know_yet(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them it was down; what went before does not count."""
    there = iter([True, False, True])
    monkeypatch.setattr(service, "TOPICS_S", 0.0)
    monkeypatch.setattr(service, "listens", lambda *_: next(there))
    monkeypatch.setattr(service, "topic_gone", lambda *_: StreamFailed("gone"))
    for _ in range(3):
        stream._look_at_topics()
    monkeypatch.setattr(service, "listens", lambda *_: True)
    with pytest.raises(StreamFailed):
        stream._look_at_topics()


def test_a_topic_is_not_gone_that_a_broker_did_not_know_yet_in_two_holds(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours may lie between, in which tasks have read it."""
    query: Any = FakeQuery()
    monkeypatch.setattr(service, "TOPICS_S", 0.0)
    monkeypatch.setattr(service, "listens", lambda *_: True)
    monkeypatch.setattr(service, "topic_gone", lambda *_: StreamFailed("gone"))
    for results in (LIMIT, 1, LIMIT):
        stream.driver.state = state_of_day(results=results)  # type: ignore[misc]
        if stream._holds(query):
            stream._look_at_topics()
    assert stream._holds(query)
    with pytest.raises(StreamFailed):
        stream._look_at_topics()


def test_a_broker_that_hangs_keeps_no_command_waiting(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told to seal the session does so while the stream looks."""
    waited: list[float] = []

    def hangs(_servers: str, _options: object, timeout_s: float = TIMEOUT_S) -> None:
        waited.append(timeout_s)
        raise KafkaUnavailable("nobody answers")

    monkeypatch.setattr(service, "listens", lambda *_: True)
    monkeypatch.setattr(failures, "cluster", hangs)
    stream._look_at_topics()
    [waited_s] = waited
    assert waited_s <= 2.0


def test_a_batch_is_refused_while_intake_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes it for read: a new start reads it at once, or else the next batch does."""
    held, read = [True], []

    def epoch(end: Any) -> bool:
        read.append(end)
        return True

    hooks = EpochHooks(epoch, lambda: False, lambda: held[0], lambda: True)
    query = SupervisedQuery(MagicMock(), {}, tmp_path / "1", hooks, trigger_s=0, available_now=True)
    monkeypatch.setattr(supervised, "batch_end", lambda _, batch: batch)
    monkeypatch.setattr(supervised, "stream_rows", lambda *_: MagicMock())
    query.stop()  # nothing was started yet
    query._on_batch(None, 0)
    assert (read, query.has_refused) == ([], True)
    held[0] = False
    query._on_batch(None, 1)
    assert (read, query.has_refused) == ([1], True)
    query.start({})
    assert not query.has_refused
