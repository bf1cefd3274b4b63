"""Sessions that the exchange's calendar ends, under a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spillway.kafka.client import KafkaUnavailable
from spillway.protocol.plan import plan_epoch
from spillway.protocol.state import JournalState, replay
from spillway.stream import commands as source
from spillway.stream import supervised
from spillway.stream.boundary import DueClose, due_close, has_no_close, never_closes
from spillway.stream.genesis import StartRefused, first_entry
from spillway.stream.run import Wanted, Watcher
from spillway.stream.service import Stream
from spillway.stream.supervised import EpochHooks, SupervisedQuery
from spillway_schemas.journal import Epoch, Offsets, SlotTotals, Topic
from spillway_schemas.query import load_query
from spillway_schemas.setting_fields import SessionSettings
from spillway_schemas.settings import Settings, load_settings
from tests.commands import outcome_of
from tests.protocol_entries import claim, ends, epoch, genesis, seal, sealed, withdrawing

GRACE_S = 300
DAY, EARLY, AFTER, SUNDAY = "2023-06-30", "2023-07-03", "2023-07-05", "2023-07-02"
"""A Friday; the Monday that closes at 13:00 in New York; the Wednesday after Independence Day."""


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def open_state(date: str, *entries: Epoch) -> JournalState:
    state = replay([genesis(session=date), claim(1, 1), *entries])
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("date", "now", "at"),
    [
        (DAY, "2023-06-30T16:04:59.999-04:00", None),
        (DAY, "2023-06-30T16:05:00-04:00", "2023-06-30T16:05:00-04:00"),
        (DAY, "2023-07-02T12:00:00-04:00", "2023-06-30T16:05:00-04:00"),  # days later: the same
        (EARLY, "2023-07-03T13:04:59-04:00", None),
        (EARLY, "2023-07-03T13:05:00-04:00", "2023-07-03T13:05:00-04:00"),
        (EARLY, "2023-07-02T23:00:00-04:00", None),  # started on a Sunday: Monday is still to come
        (AFTER, "2023-07-04T23:00:00-04:00", None),
        (SUNDAY, "2023-07-06T23:00:00-04:00", None),  # never
    ],
)
def test_a_session_closes_at_close_and_grace(date: str, now: str, at: str | None) -> None:
    found = due_close(open_state(date), [], "XNYS", GRACE_S, ms(now))
    assert found == (None if at is None else DueClose(date, ms(at)))


def test_the_seal_says_who_and_why() -> None:
    command = DueClose(EARLY, ms("2023-07-03T17:05:00Z")).seal({"a": [3]})
    assert (command.id, command.kind, command.session) == (f"calendar/{EARLY}", "seal", EARLY)
    assert (command.offsets, command.at, command.by) == ({"a": [3]}, "close", "calendar")
    assert command.issued_at == "2023-07-03T17:05:00.000+00:00"
    assert command.reason == f"close and grace of {EARLY}"


LATE = ms("2023-07-09T00:00:00Z")


def test_a_pending_seal_holds_and_a_withdrawn_one_of_the_calendar_is_not_repeated() -> None:
    mine = seal(ends(9, 9, 9), session=EARLY, next_session=AFTER)
    calendars = mine.model_copy(update={"command": f"calendar/{EARLY}"})
    asked = [outcome_of(f"calendar/{EARLY}", kind="seal", obeyed=True)]
    common = {"session": EARLY}
    for pending, commands, again in ((mine, [], True), (calendars, asked, False)):
        accepted = epoch(2, 0, ends(1, 1, 1), seal=pending, commands=commands, **common)
        assert due_close(open_state(EARLY, accepted), [], "XNYS", GRACE_S, LATE) is None
        assert never_closes(open_state(EARLY, accepted), "XNYS") is None
        withdrawn = epoch(3, 1, ends(1, 1, 1), withdrawn=pending.command, **common)
        state = open_state(EARLY, accepted, withdrawn)
        assert (due_close(state, [], "XNYS", GRACE_S, LATE) is not None) == again
        says = f"{EARLY} had its calendar's seal withdrawn: end it with "
        says += f"`spillway seal --session {EARLY}`"
        assert never_closes(state, "XNYS") == (None if again else says)


def test_the_calendar_s_seal_is_not_used_up_on_a_person_s() -> None:
    """Both in one epoch would count as obeyed; with the person's withdrawn, the day never ended."""
    state = open_state(EARLY)
    mine = DueClose(EARLY, LATE).seal({"a": [3]}).model_copy(update={"id": "mine"})
    other = mine.model_copy(update={"session": AFTER})
    back = withdrawing("mine", session=EARLY)
    assert due_close(state, [other, mine], "XNYS", GRACE_S, LATE) is None
    for waiting in ([], [other], [back]):
        assert due_close(state, waiting, "XNYS", GRACE_S, LATE) is not None


def test_a_seal_that_waits_to_be_withdrawn_leaves_the_day_to_the_calendar() -> None:
    """Else the batch that withdraws it would read the evening into the day."""
    mine = DueClose(EARLY, LATE).seal({"a": [8], "b": [8]}).model_copy(update={"id": "mine"})
    back = withdrawing("mine", session=EARLY)
    pending = seal(ends(9, 9, 9), session=EARLY, next_session=AFTER, command="mine")
    accepted = open_state(EARLY, epoch(2, 0, ends(1, 1, 1), seal=pending, session=EARLY))
    for state, waiting in ((open_state(EARLY), [mine, back]), (accepted, [back])):
        due = due_close(state, waiting, "XNYS", GRACE_S, LATE)
        assert due is not None
        calendars = due.seal({"a": [5, 5], "b": [5]})
        found = plan_epoch(state, ends(6, 6, 6), [*waiting, calendars], AFTER)
        assert found.seal is not None
        assert (found.seal.command, found.seal.end) == (calendars.id, ends(5, 5, 5))


def test_a_day_without_a_close_is_said_to_have_none() -> None:
    assert never_closes(open_state(EARLY), "XNYS") is None
    assert never_closes(open_state(SUNDAY), "XNYS") == (
        f"{SUNDAY} is not a trading day of XNYS: end it with `spillway seal --session {SUNDAY}`"
    )


def test_that_a_day_has_no_close_is_said_to_who_ends_days_by_hand() -> None:
    assert has_no_close(open_state(EARLY), "XNYS") is None
    assert has_no_close(open_state(SUNDAY), "XNYS") == (
        f"{SUNDAY} is not a trading day of XNYS, so it has no close: end it with `spillway seal "
        f"--session {SUNDAY}`, without `--at close`"
    )


@pytest.mark.parametrize(
    ("boundary", "told"), [("calendar", "end it with"), ("command", "--at close")]
)
def test_a_stream_says_what_will_not_end_its_first_day(boundary: Any, told: str) -> None:
    settings = Settings(session=SessionSettings(boundary=boundary, calendar="XNYS"))
    troubles: list[str] = []
    watcher = Watcher(on_trouble=troubles.append)
    stream: Any = Stream(settings, load_query("symbol"), Wanted(), watcher, lambda: 0)
    for day in (SUNDAY, EARLY):
        stream.driver = SimpleNamespace(state=open_state(day))
        stream._tell_never_closes()
    assert [told in each for each in troubles] == [True]


# --- the first session


class Broker:
    """A cluster with empty topics."""

    def cluster_id(self) -> str:
        return "c"

    def topics(self, names: Sequence[str]) -> list[Topic]:
        return [Topic(name=name, id=name, partitions=1) for name in names]

    def beginning_offsets(self, names: Sequence[str]) -> Offsets:
        return {name: [0] for name in names}

    def offsets_for_time(self, names: Sequence[str], at_ms: int) -> Offsets:
        return {name: [at_ms % 1000] for name in names}


def settings_of(root: Path, **more: object) -> Settings:
    flags = {f"session.{name}": value for name, value in more.items()}
    flags |= {"warehouse.root": str(root), "stream.start": "earliest"}
    return load_settings(None, flags, environ={})[0]


def first(settings: Settings, session: str | None, now: str) -> str:
    found = first_entry(settings, "q", ["t"], Broker(), session=session, now_ms=ms(now))  # type: ignore[arg-type]
    return found.session


def test_a_stream_that_starts_on_a_sunday_begins_with_the_next_trading_day(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, boundary="calendar")
    assert first(settings, None, "2023-07-02T12:00:00-04:00") == EARLY
    assert first(settings, None, "2023-07-03T12:59:00-04:00") == EARLY
    assert first(settings, None, "2023-07-03T13:01:00-04:00") == AFTER
    assert first(settings, EARLY, "2023-07-02T12:00:00-04:00") == EARLY


def test_a_first_session_that_the_calendar_never_ends_is_refused(tmp_path: Path) -> None:
    now = "2023-07-02T12:00:00-04:00"
    with pytest.raises(StartRefused, match=f"{SUNDAY} is not a trading day .* --session {EARLY}"):
        first(settings_of(tmp_path, boundary="calendar"), SUNDAY, now)
    assert first(settings_of(tmp_path), SUNDAY, now) == SUNDAY, "a person may end any day"


# --- Kafka is away at the close


class Kafka:
    """A broker that may be away."""

    def __init__(self) -> None:
        self.away = True
        self.asked: list[int] = []

    @contextmanager
    def cluster(self, *_: Any) -> Iterator[Kafka]:
        if self.away:
            raise KafkaUnavailable("Kafka at nowhere does not answer")
        yield self

    def offsets_for_time(self, names: Sequence[str], at_ms: int) -> Offsets:
        self.asked.append(at_ms)
        return {name: [7] for name in names}


class Epochs:
    """A driver that notes what it was offered."""

    def __init__(self, state: JournalState) -> None:
        self.state = state
        self.offered: list[Any] = []

    def look(self) -> None:
        """Nobody else is there."""

    def epoch(self, end: Offsets, commands: Any, after: str, **_: Any) -> None:
        self.offered.append((end, [c.id for c in commands], after))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(source, "cluster", made.cluster)
    return made


def streaming(root: Path, now: str, troubles: list[str], **more: object) -> tuple[Stream, Epochs]:
    """A stream without Spark, at a time of the exchange; its open session is the early close."""
    settings = settings_of(root, boundary="calendar", **more)
    watcher = Watcher(on_trouble=troubles.append)
    stream = Stream(settings, load_query(settings.query), Wanted(), watcher, lambda: ms(now))
    driver = Epochs(open_state(EARLY))
    stream.driver = driver  # type: ignore[assignment]
    hooks = EpochHooks(stream._towards, stream._is_sealed, stream._is_held, stream._is_over)
    stream.supervised = SupervisedQuery(
        None, {}, root / "checkpoints", hooks, trigger_s=1, available_now=False
    )
    return stream, driver


def test_the_day_is_sealed_when_kafka_is_back(tmp_path: Path, kafka: Kafka) -> None:
    troubles: list[str] = []
    stream, driver = streaming(tmp_path, "2023-07-03T15:00:00-04:00", troubles)
    for _ in range(3):
        stream._idle_epoch()
    assert driver.offered == []
    assert troubles == [
        f"{EARLY} has closed and waits for its seal: Kafka at nowhere does not answer"
    ], "it is said once"
    kafka.away = False
    stream._idle_epoch()
    assert driver.offered == [(driver.state.end, [f"calendar/{EARLY}"], AFTER)]
    assert set(kafka.asked) == {ms("2023-07-03T13:05:00-04:00")}, "its time, however late it is"


def test_days_that_are_different_this_time_end_so(tmp_path: Path, kafka: Kafka) -> None:
    kafka.away = False
    noon = "2023-07-03T12:00:00-04:00"
    earlier = f"{EARLY} 11:30; {AFTER} closed"
    stream, driver = streaming(tmp_path / "earlier", noon, [], overrides=earlier)
    stream._idle_epoch()
    assert driver.offered == [(driver.state.end, [f"calendar/{EARLY}"], "2023-07-06")]
    assert set(kafka.asked) == {ms("2023-07-03T11:35:00-04:00")}
    troubles: list[str] = []
    late, closed = "2023-07-04T12:00:00-04:00", f"{EARLY} closed"
    stream, _ = streaming(tmp_path / "closed", late, troubles, overrides=closed)
    assert stream.commands.waiting(stream.driver.state) == []
    stream._tell_never_closes()
    assert f"{EARLY} is not a trading day" in troubles[0]


def test_no_batch_is_joined_without_the_seal_that_is_due(
    tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may be of the evening. The query is started again, as when Spark finds no broker."""
    troubles: list[str] = []
    stream, driver = streaming(tmp_path, "2023-07-03T15:00:00-04:00", troubles)
    monkeypatch.setattr(supervised, "batch_end", lambda *_: ends(5, 5, 5))
    with pytest.raises(KafkaUnavailable):
        stream.supervised._on_batch(None, 0)
    assert driver.offered == []
    with stream.supervised.at_rest() as is_free:
        assert not is_free, "a query that failed is started again before anything else"
    started: list[Any] = []
    monkeypatch.setattr(stream.supervised, "start", lambda *given: started.append(given))
    stream.watcher.stop.set()  # Do not wait for it.
    assert stream._again(None) > 0
    assert started == [(driver.state.end,)]


def test_a_person_s_seal_keeps_the_calendar_s_back(tmp_path: Path, kafka: Kafka) -> None:
    kafka.away = False
    stream, driver = streaming(tmp_path, "2023-07-03T15:00:00-04:00", [])
    mine = DueClose(EARLY, LATE).seal(ends(7, 7, 7)).model_copy(update={"id": "mine"})
    stream.warehouse.commands.append(mine)
    stream._idle_epoch()
    assert [ids for _, ids, _ in driver.offered] == [["mine"]]


def test_a_withdrawal_of_the_calendar_s_seal_is_told_to_end_by_hand(tmp_path: Path) -> None:
    troubles: list[str] = []
    stream, driver = streaming(tmp_path, "2023-07-03T12:00:00-04:00", troubles)
    theirs = seal(ends(9, 9, 9), session=EARLY, next_session=AFTER)
    theirs = theirs.model_copy(update={"command": f"calendar/{EARLY}"})
    asked = [outcome_of(theirs.command, kind="seal", obeyed=True)]
    accepted = epoch(2, 0, ends(1, 1, 1), seal=theirs, commands=asked, session=EARLY)
    withdrawn = epoch(3, 1, ends(1, 1, 1), withdrawn=theirs.command, session=EARLY)

    def journaled(*_: Any, **__: Any) -> None:
        driver.state, stream._last = open_state(EARLY, accepted, withdrawn), withdrawn

    driver.epoch = journaled  # type: ignore[method-assign]
    for _ in range(2):
        stream._towards(ends(1, 1, 1))
    assert len(troubles) == 1
    assert f"{EARLY} had its calendar's seal withdrawn: end it with" in troubles[0]


def test_a_stream_until_a_seal_leaves_the_next_session_s_rows(tmp_path: Path, kafka: Kafka) -> None:
    """What a batch has beyond the seal is not read; should the seal be withdrawn, it is then."""
    kafka.away = False
    stream, driver = streaming(tmp_path, "2023-07-03T12:00:00-04:00", [])
    stream.wanted = Wanted(until_sealed=EARLY)
    stream._towards(ends(3, 3, 3))
    assert (driver.offered.pop()[0], stream.supervised.left_rows) == (ends(3, 3, 3), False)
    mine = DueClose(EARLY, LATE).seal(ends(7, 7, 7)).model_copy(update={"id": "mine"})
    stream.warehouse.commands.append(mine)
    stream._towards(ends(9, 5, 9))
    assert (driver.offered.pop()[0], stream.supervised.left_rows) == (ends(7, 5, 7), True)
    # Whoever streams on reads all of it, and so does who waits for another session.
    stream.supervised.left_rows = False
    for wanted in (Wanted(), Wanted(until_sealed=AFTER)):
        stream.wanted = wanted
        stream._towards(ends(9, 5, 9))
        assert (driver.offered.pop()[0], stream.supervised.left_rows) == (ends(9, 5, 9), False)


def test_a_batch_is_read_in_epochs_that_memory_has_room_for(
    tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is journaled says of each but the last that it left rows in Kafka."""
    stream, driver = streaming(tmp_path, "2023-07-03T12:00:00-04:00", [])
    monkeypatch.setattr(stream, "_rows_that_fit", lambda: 9)
    read: list[tuple[Offsets, int]] = []

    def journaled(end: Offsets, *_: Any, limit_rows: int, **__: Any) -> None:
        read.append((end, limit_rows))
        driver.state = open_state(EARLY, epoch(2, 0, end, session=EARLY))

    driver.epoch = journaled  # type: ignore[method-assign]
    monkeypatch.setattr(stream.supervised, "_pace", lambda _: None)
    monkeypatch.setattr(supervised, "batch_end", lambda *_: ends(9, 9, 7))
    stream.supervised._on_batch(None, 0)
    assert read == [(ends(3, 3, 3), 9), (ends(6, 6, 5), 8), (ends(9, 9, 7), 9)]


def test_an_epoch_has_as_many_rows_as_memory_has_room_for(tmp_path: Path, kafka: Kafka) -> None:
    """By the journal before any came, then by the last epoch that brought enough to tell."""
    stream, driver = streaming(tmp_path, "2023-07-03T12:00:00-04:00", [])
    of_slot = {"budget_bytes": 1 << 30, "folder_bytes": 0, "state_bytes": 10**6, "rows": 1_000}
    totals = SlotTotals(slot=0, rows_in={"a": 300}, **of_slot)
    entry = epoch(2, 0, ends(9, 9, 9), session=EARLY, slots=[totals])
    fits = int(0.8 * (0.2 - 1 / 32) * (1 << 30) / 1_000) * len(driver.state.slots)
    assert stream._rows_that_fit() == stream.settings.stream.max_rows_per_epoch
    stream._journaled(entry)
    assert abs(stream._rows_that_fit() - fits) <= 2
    few = totals.model_copy(update={"rows_in": {"a": 249}, "rows": 1})
    stream._journaled(entry.model_copy(update={"slots": [few]}))
    assert abs(stream._rows_that_fit() - fits) <= 2
    stream._journaled(
        entry.model_copy(update={"slots": [totals.model_copy(update={"rows": 2_000})]})
    )
    assert abs(stream._rows_that_fit() - 2 * fits) <= 4


def test_nothing_beyond_a_seal_is_read_of_a_batch_of_several_epochs(
    tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.away = False
    stream, driver = streaming(tmp_path, "2023-07-03T12:00:00-04:00", [])
    monkeypatch.setattr(stream, "_rows_that_fit", lambda: 9)
    monkeypatch.setattr(supervised, "batch_end", lambda *_: ends(9, 9, 7))
    stream.wanted = Wanted(until_sealed=EARLY)
    mine = DueClose(EARLY, LATE).seal(ends(1, 9, 6)).model_copy(update={"id": "mine"})
    stream.warehouse.commands.append(mine)
    read: list[Offsets] = []

    def journaled(end: Offsets, *_: Any, **__: Any) -> None:
        read.append(end)
        driver.state = open_state(EARLY, epoch(2, 0, end, session=EARLY))

    driver.epoch = journaled  # type: ignore[method-assign]
    monkeypatch.setattr(stream.supervised, "_pace", lambda _: None)
    stream.supervised._on_batch(None, 0)
    # The first partition has reached its end long before the others have.
    assert read == [ends(0, 5, 3), ends(1, 9, 6)]
    assert stream.supervised.left_rows


def test_a_session_that_was_just_sealed_is_the_last_one(tmp_path: Path, kafka: Kafka) -> None:
    """The next one has closed, too: its seal waits for whoever streams it."""
    kafka.away = False
    stream, driver = streaming(tmp_path, "2023-07-07T15:00:00-04:00", [])
    end = ends(1, 1, 1)
    driver.state = open_state(
        EARLY,
        epoch(
            2,
            0,
            end,
            session=AFTER,
            seal=seal(end, session=EARLY, next_session=AFTER),
            sealed=sealed(end, 0).model_copy(update={"session": EARLY}),
        ),
    )
    stream.wanted = Wanted(until_sealed=EARLY)
    stream._idle_epoch()
    assert driver.offered == []
    stream.wanted = Wanted()
    stream._idle_epoch()
    assert [ids for _, ids, _ in driver.offered] == [[f"calendar/{AFTER}"]]


def test_kafka_is_not_asked_before_the_close(tmp_path: Path, kafka: Kafka) -> None:
    stream, driver = streaming(tmp_path, "2023-07-03T13:04:00-04:00", [])
    stream._idle_epoch()
    assert (driver.offered, kafka.asked) == ([], [])


def test_a_new_session_looks_at_the_day_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, driver = streaming(tmp_path, "2023-07-03T12:00:00-04:00", [])
    looked: list[str] = []
    monkeypatch.setattr(
        stream, "_look_at_the_day_before", lambda: looked.append(driver.state.session.date)
    )
    stream._towards(ends(1, 1, 1))
    assert looked == []

    def journaled(*_: Any, **__: Any) -> None:
        driver.state = open_state(AFTER)

    driver.epoch = journaled  # type: ignore[method-assign]
    stream._towards(ends(1, 1, 1))
    assert looked == [AFTER]
