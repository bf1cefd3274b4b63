"""Accepting that input is gone for good."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spillway.cleanup.work import work_of
from spillway.cli import app
from spillway.commands.losses import accepted_lines
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.kafka.client import AnotherCluster
from spillway.losses import LossAnswer, LossRefused, accept_loss
from spillway.protocol.entry import entry_of
from spillway.protocol.plan import plan_epoch
from spillway.protocol.recovery import Restore
from spillway.protocol.state import AnotherQuery, JournalState, fold, genesis_of, with_journal
from spillway.tables import NothingYet, SessionEvent, Warehouse
from spillway.tables.retention import proved
from spillway.verify.proof import InputGone, VerifyReport, verify
from spillway.verify.shown import verdict_table
from spillway_schemas.commands import Command, LossCommand
from spillway_schemas.corrections import Revision
from spillway_schemas.journal import Claim, Topic
from spillway_schemas.losses import AcceptedLoss, LostRange
from tests.commands import command_of
from tests.integration.spilled_day import (
    AT,
    DAY,
    NEXT,
    SPEC,
    SpilledDay,
    make_day,
    random_rows,
)
from tests.protocol_entries import report

ROWS = 60


def test_why_is_asked_for() -> None:
    words = ["accept-loss", "--session", DAY, "--reason", " "]
    found = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert (found.exit_code, "--reason is empty" in found.output) == (2, True)


class View:
    """A cluster whose one topic begins at an offset."""

    def __init__(
        self, oldest: int, name: str = "c", newest: int = ROWS, id_: str = "x", open_: int = 0
    ) -> None:
        """`open_`: so many of the newest rows are of a transaction that is open."""
        self.oldest, self.name, self.newest, self.id = oldest, name, newest, id_
        self.open = open_

    def cluster_id(self) -> str:
        return self.name

    def topics(self, names: list[str]) -> list[Topic]:
        return [Topic(name=name, id=self.id, partitions=1) for name in names]

    def beginning_offsets(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [self.oldest] for name in names}

    def end_offsets(self, names: list[str], *, read_committed: bool = True) -> dict[str, list[int]]:
        return {name: [self.newest - self.open * read_committed] for name in names}


@pytest.fixture
def day(tmp_path: Path) -> SpilledDay:
    return make_day(str(tmp_path / "w"), random_rows(1, ROWS, 10, 2))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Kafka holds everything from an offset on."""

    def holds_from(oldest: int, **more: Any) -> None:
        for module in ("spillway.losses", "spillway.verify.proof"):
            monkeypatch.setattr(f"{module}.demand_listener", lambda _: None)
            monkeypatch.setattr(f"{module}.cluster", lambda *_: nullcontext(View(oldest, **more)))

    return holds_from


def answered(
    warehouse: Warehouse, session: str = DAY, fingerprint: str = "q", reason: str = "gone"
) -> LossAnswer:
    return accept_loss(
        warehouse,
        fingerprint,
        session,
        reason,
        "ada",
        bootstrap="b:1",
        client={},
        clock=lambda: 1_767_650_400_000,
    )


def accept(warehouse: Warehouse, *args: str, **more: str) -> AcceptedLoss:
    return answered(warehouse, *args, **more).loss


def test_what_is_gone_is_noted_and_the_last_word_counts(
    day: SpilledDay, kafka: Callable[[int], None]
) -> None:
    w = day.warehouse()
    assert w.sessions.accepted_loss(DAY) is None
    kafka(7)
    first = accept(w)
    assert [str(each) for each in first.ranges] == ["t/0 from offset 0 to 7"]
    kafka(9)
    second = accept(w, reason="more is gone")
    assert second.offsets == 9
    assert w.sessions.accepted_loss(DAY) == second
    assert (second.reason, second.by) == ("more is gone", "ada")
    assert w.sessions.accepted_loss(NEXT) is None


def test_what_is_there_again_is_taken_back(day: SpilledDay, kafka: Callable[[int], None]) -> None:
    w = day.warehouse()
    kafka(7)
    accept(w)
    kafka(0)
    back = answered(w, reason="a replica had it")
    assert accepted_lines(DAY, back) == [
        f"Kafka holds all of {DAY} again: what was accepted is taken back"
    ]
    assert w.sessions.accepted_loss(DAY) is None


def test_another_cluster_is_not_asked(
    day: SpilledDay, kafka: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is lost nor what the proof would read."""
    w = day.warehouse()
    kafka(7, name="other")
    with pytest.raises(AnotherCluster, match="b:1 is another Kafka cluster"):
        accept(w)
    monkeypatch.setattr("spillway.verify.proof.check_query", lambda *_: None)
    w.sessions.append(SessionEvent(session=DAY, event="cleaned"))

    class OfAny:
        fingerprint = ""

    with pytest.raises(AnotherCluster, match=r"check kafka\.bootstrap_servers"):
        verify(lambda: pytest.fail("Spark"), w, OfAny(), DAY, bootstrap="b:1")  # type: ignore[arg-type]


def test_a_day_that_is_as_complete_as_it_can_be_needs_nobody(day: SpilledDay) -> None:
    w = day.warehouse()
    loss = {"loss": {"ranges": [], "reason": "", "by": ""}}
    w.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    w.sessions.append(SessionEvent(session=DAY, event="accepted", details=loss))
    w.sessions.append(SessionEvent(session=DAY, event="verified", complete=False))
    assert proved(w.sessions.read()) == {}
    w.sessions.append(SessionEvent(session=DAY, event="verified", complete=False, details=loss))
    assert set(proved(w.sessions.read())) == {DAY}
    outcome = w.sessions.history().outcomes()[DAY]
    assert (outcome.complete, outcome.accepted) == (False, True)
    # Taken back, and found wanting: it needs somebody again.
    w.sessions.append(SessionEvent(session=DAY, event="accepted", details=loss))
    w.sessions.append(SessionEvent(session=DAY, event="verified", complete=False))
    assert w.sessions.history().outcomes()[DAY].accepted is False
    assert proved(w.sessions.read()) == {}


def test_nothing_is_accepted_that_is_not_lost(
    day: SpilledDay, kafka: Callable[[int], None], tmp_path: Path
) -> None:
    w = day.warehouse()
    kafka(0)
    with pytest.raises(LossRefused, match=f"holds all of the input of {DAY}"):
        accept(w)
    kafka(7)
    with pytest.raises(LossRefused, match=r"2026-01-07 is not in the journal .* the open session"):
        accept(w, "2026-01-07")
    with pytest.raises(AnotherQuery):
        accept(w, fingerprint="other")
    w.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    w.sessions.append(SessionEvent(session=DAY, event="verified", complete=True))
    with pytest.raises(LossRefused, match="is proved complete"):
        accept(w)
    assert w.sessions.accepted_loss(DAY) is None
    with pytest.raises(NothingYet):
        accept(Warehouse(str(tmp_path / "other"), result_schema(SPEC), fsync=False))


def test_verify_ends_a_day_whose_loss_is_accepted_and_no_other(
    day: SpilledDay, kafka: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = day.warehouse()
    monkeypatch.setattr("spillway.verify.proof.check_query", lambda *_: None)
    w.sessions.append(SessionEvent(session=DAY, event="cleaned"))

    class OfAny:
        fingerprint = ""

    def never() -> None:
        pytest.fail("Spark was started")

    def proved_() -> VerifyReport:
        return verify(never, w, OfAny(), DAY, bootstrap="b:1")  # type: ignore[arg-type]

    kafka(7)
    with pytest.raises(InputGone, match=f"spillway accept-loss --session {DAY} --reason"):
        proved_()
    accept(w)
    report = proved_()
    assert report.to_dict() == {
        "session": DAY,
        "expected": None,
        "run_time": day.sealed.results,
        "cleanup": 0,
        "missing": None,
        "doubled": None,
        "complete": False,
        "details": {
            "differences": [],
            "problems": [
                "input is lost, so nothing can be proved: t/0 from offset 0 to 7; accepted by ada: "
                "gone"
            ],
            "cleaned": True,
            "loss": w.sessions.accepted_loss(DAY).model_dump(),  # type: ignore[union-attr]
            "seconds": report.details["seconds"],
        },
    }
    last = w.sessions.read()[-1]
    assert (last.event, last.complete, last.expected) == ("verified", False, None)
    kafka(0)  # other rows may have these offsets by now
    assert proved_().complete is False
    loss = {"ranges": [LostRange(topic="t", partition=0, begin=0, end=7)], "reason": "", "by": ""}
    told = AcceptedLoss.model_validate(loss).model_dump()
    w.sessions.append(SessionEvent(session=DAY, event="accepted", details={"loss": told}))
    assert proved_().details["problems"][0].endswith("t/0 from offset 0 to 7; accepted")
    kafka(9)  # more is gone than was accepted
    with pytest.raises(InputGone, match="from offset 9 on"):
        proved_()


def test_a_day_that_was_proved_needs_its_input_no_more(
    day: SpilledDay, kafka: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the table has the results that the proof has counted, and no others."""
    w = day.warehouse()
    monkeypatch.setattr("spillway.verify.proof.check_query", lambda *_: None)
    kafka(7)

    class OfAny:
        fingerprint = ""

    def verdict() -> VerifyReport:
        return verify(lambda: pytest.fail("Spark"), w, OfAny(), DAY, bootstrap="b:1")  # type: ignore[arg-type]

    held = sum(f.rows for f in w.files("results") if f.partition["session_date"] == DAY)
    details = {"differences": [], "problems": [], "keys": 3, "quarantined": 0, "seconds": 1.5}
    proof = SessionEvent(
        session=DAY,
        event="verified",
        expected=held,
        run_time=held,
        cleanup=0,
        missing=0,
        doubled=0,
        complete=True,
        details=details,
        written_at="2026-01-05T22:14:05+01:00",
    )
    w.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    w.sessions.append(proof.model_copy(update={"expected": held - 1}))
    with pytest.raises(InputGone):
        verdict()
    w.sessions.append(proof)
    events = len(w.sessions.read())
    report = verdict()
    assert (report.complete, report.expected, report.run_time) == (True, held, held)
    # Whichever cluster answers now: the verdict needs its input no more.
    kafka(7, name="other")
    assert verdict() == report
    kafka(7)
    assert (report.cleanup, report.missing, report.doubled) == (0, 0, 0)
    says = report.details["stands"]
    assert says.startswith(f"{DAY} was proved complete on 2026-01-05 at 21:14 UTC, nothing was ")
    assert says.endswith(
        "needs its input no more (Kafka holds 't' partition 0 from offset 7 on, but the input "
        "begins at 0)"
    )
    assert details.items() <= report.details.items()
    assert report.details["proved_at"] == "2026-01-05T21:14:05+00:00"
    assert verdict_table(report.to_dict()).caption == says
    assert len(w.sessions.read()) == events, "nothing was proved anew"
    w.sessions.append(proof.model_copy(update={"complete": False, "missing": 1}))
    with pytest.raises(InputGone):
        verdict()
    w.sessions.append(proof)
    assert verdict().complete
    late = Revision(revision=1, source="f", reason="late", by="ada", digest="0", rows=1, results=0)
    w.sessions.append(SessionEvent(session=DAY, event="corrected", details=late.model_dump()))
    with pytest.raises(InputGone):
        verdict()


def test_a_session_s_loss_is_accepted_by_the_query_that_it_ran_by(
    day: SpilledDay, kafka: Callable[..., None]
) -> None:
    w = day.warehouse()
    state = w.journal.state()
    assert state is not None
    topics = [Topic(name=name, id="x", partitions=1) for name in ("t", "u")]
    update = {"query": "new", "topics": topics, "start": {"t": [0], "u": [3]}}
    begins = with_journal(state, state.genesis.model_copy(update=update))
    n, term = state.n + 1, state.term + 1
    w.journal.append(Claim(n=n, term=term, driver="d", written_at=AT, begins=begins))
    kafka(7, newest=ROWS + 9)
    with pytest.raises(AnotherQuery):
        accept(w, DAY, "new")
    assert [str(each) for each in accept(w, DAY).ranges] == ["t/0 from offset 0 to 7"]
    kafka(ROWS + 5, newest=ROWS + 9)
    with pytest.raises(AnotherQuery):
        accept(w, NEXT)
    told = accept(w, NEXT, "new")
    assert [str(each) for each in told.ranges] == [
        f"t/0 from offset {ROWS} to {ROWS + 5}",
        f"u/0 from offset 3 to {ROWS + 5}",
    ]
    state = w.journal.state()
    assert state is not None
    assert w.accepted_loss(genesis_of(state, state.sealed[DAY]), state.sealed[DAY]) is not None
    assert work_of(w, DAY, "q").loss is not None


# --- of a session that is open


def asked_for(warehouse: Warehouse) -> list[LossCommand]:
    found = [each.command for each in warehouse.commands.read()]
    return [each for each in found if isinstance(each, LossCommand)]


def test_of_an_open_session_it_is_a_command(day: SpilledDay, kafka: Callable[..., None]) -> None:
    w = day.warehouse()
    kafka(ROWS + 5, newest=ROWS + 9)
    answer = answered(w, NEXT)
    (command,) = asked_for(w)
    assert (command.session, command.lost_to) == (NEXT, {"t": [ROWS + 5]})
    assert (command.reason, command.by) == ("gone", "ada")
    assert command.issued_at == "2026-01-05T22:00:00.000+00:00"
    assert accepted_lines(NEXT, answer) == [
        "lost: t/0 from offset 60 to 65",
        f"{NEXT}: 5 offsets are accepted as lost, 5 of them before they were read",
        "Next: `spillway stream` goes on without these rows: start it if it is not running",
        f"Then: `spillway verify --session {NEXT}` ends the day as not complete",
    ]
    assert w.sessions.accepted_loss(NEXT) is None
    assert answered(w, NEXT) == answer
    assert len(asked_for(w)) == 1, "asked again it is answered, and not repeated"
    kafka(ROWS + 7, newest=ROWS + 9)
    assert answered(w, NEXT).never_read == 7
    assert [each.lost_to["t"] for each in asked_for(w)] == [[ROWS + 5], [ROWS + 7]]


@pytest.mark.parametrize(
    ("sealed_at", "of_next", "told"),
    [
        (ROWS, 5, "All of them lie"),
        (ROWS + 3, 2, "2 of them lie"),
        (ROWS + 5, 0, ""),
        (ROWS - 9, 5, "All of them lie"),
    ],
)
def test_what_lies_behind_a_pending_seal_is_of_the_next_session(
    day: SpilledDay, kafka: Callable[..., None], sealed_at: int, of_next: int, told: str
) -> None:
    """The session itself ends as complete where it has lost none."""
    w = day.warehouse()
    w.commands.append(command_of("seal", "c", session=NEXT, offsets={"t": [sealed_at]}))
    kafka(ROWS + 5, newest=ROWS + 9)
    answer = answered(w, NEXT)
    assert (answer.of_next, answer.never_read) == (of_next, 5)
    lines = accepted_lines(NEXT, answer)
    assert [line for line in lines if "behind the end of its seal" in line] == (
        [
            f"{told} behind the end of its seal, which is pending: they are of the session after "
            f"{NEXT}, which ends as not complete"
        ]
        if told
        else []
    )
    assert ("can still end as complete" in lines[-1]) == (of_next == 5)


def test_what_was_asked_for_is_answered_though_kafka_holds_it_again(
    day: SpilledDay, kafka: Callable[..., None]
) -> None:
    """The stream has not obeyed yet, and will."""
    w = day.warehouse()
    kafka(ROWS + 5, newest=ROWS + 9)
    answer = answered(w, NEXT)
    kafka(0, newest=ROWS + 9)
    assert answered(w, NEXT) == answer
    assert len(asked_for(w)) == 1


def test_a_transaction_that_is_open_again_ends_no_partition_early(
    day: SpilledDay, kafka: Callable[..., None]
) -> None:
    """As after a failover: its rows were read once, when it was closed."""
    kafka(ROWS - 1, open_=5)
    assert answered(day.warehouse(), NEXT).of_before


def test_rows_that_cleanup_makes_up_for_are_asked_for_too(
    day: SpilledDay, kafka: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may begin before the session does and end behind it, where epochs did."""
    w = day.warehouse()
    gone_on(w, command_of("seal", "c", session=NEXT, offsets={"t": [ROWS + 9]}), end=ROWS + 9)
    again = Restore(frozenset({0}), {"t": [ROWS - 10]}, {"t": [ROWS + 20]}, (), ())
    monkeypatch.setattr("spillway.losses.deferred_rows", lambda *_: again)
    kafka(ROWS - 5, newest=ROWS + 20)
    assert [str(each) for each in accept(w, NEXT).ranges] == ["t/0 from offset 50 to 55"]
    kafka(ROWS - 5, newest=ROWS + 15)
    told = [str(each) for each in accept(w, NEXT).ranges]
    assert told == ["t/0 from offset 50 to 80"], "other rows than those that were read"


def test_a_stream_that_reads_no_rows_takes_up_a_loss_at_its_next_start(
    day: SpilledDay, kafka: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka(ROWS + 5, newest=ROWS + 9)
    monkeypatch.setattr("spillway.losses.intake_held", lambda _: "it has as many as it may have")
    answer = answered(day.warehouse(), NEXT)
    assert accepted_lines(NEXT, answer)[2] == (
        "Next: stop `spillway stream` and start it again, with a higher results.max_per_session: "
        "until then it neither reads rows nor takes up a loss"
    )


@pytest.mark.parametrize(
    ("oldest", "more", "why"),
    [
        (0, {}, f"Kafka holds all of the input of {NEXT}: nothing is lost"),
        (ROWS + 5, {"id_": "y"}, "topic t was deleted and created again .* `Make a day again`"),
        (0, {"newest": ROWS - 1}, "holds t/0 up to offset 59, but it was read up to 60: its off"),
    ],
)
def test_an_open_session_has_nothing_to_accept(
    day: SpilledDay, kafka: Callable[..., None], oldest: int, more: dict[str, Any], why: str
) -> None:
    w = day.warehouse()
    kafka(oldest, **{"newest": ROWS + 9, **more})
    with pytest.raises(LossRefused, match=why):
        answered(w, NEXT)
    assert not asked_for(w)


def test_rows_of_the_session_before_are_asked_for_too(
    day: SpilledDay, kafka: Callable[..., None]
) -> None:
    """What is read again begins where an epoch ended, before the session's first row."""
    w = day.warehouse()
    kafka(ROWS - 1, newest=ROWS + 9)
    answer = answered(w, NEXT)
    assert asked_for(w)[0].lost_to == {"t": [ROWS - 1]}
    assert accepted_lines(NEXT, answer) == [
        "lost: t/0 from offset 0 to 59",
        f"{NEXT}: 59 offsets of the session before are accepted as lost, 0 of them before they "
        "were read",
        "Next: `spillway stream` goes on without these rows: start it if it is not running",
        f"Then: {NEXT} can still end as complete: none of its own rows is lost",
    ]
    state = gone_on(w, *asked_for(w), end=ROWS)
    sealed = gone_on(w, command_of("seal", "c", session=NEXT, offsets={"t": [ROWS]}), end=ROWS)
    assert state.lost_to == {"t": [ROWS - 1]}
    assert w.accepted_loss(sealed.genesis, sealed.sealed[NEXT]) is None


def gone_on(warehouse: Warehouse, *commands: Command, end: int) -> JournalState:
    """The stream's next epoch, in which nothing is joined."""
    state = warehouse.journal.state()
    assert state is not None
    plan = plan_epoch(state, {"t": [end]}, commands, "2026-01-07")
    reports = [report(slot, plan.epoch) for slot in state.slots]
    entry = entry_of(state, plan, reports, started_at=AT, written_at=AT, seconds={})
    warehouse.journal.append(entry)
    return fold(state, entry)


def test_a_day_that_went_on_behind_its_loss_ends_like_one_that_lost_it_later(
    day: SpilledDay, kafka: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = Warehouse(day.root, result_schema(SPEC), spill=spill_schema(SPEC), fsync=False)
    kafka(ROWS + 5, newest=ROWS + 9)
    accept(w, NEXT)
    gone_on(w, *asked_for(w), end=ROWS)
    with pytest.raises(LossRefused, match=f"holds all of the input of {NEXT} but what is accepted"):
        accept(w, NEXT)
    close = command_of("seal", "c", session=NEXT, offsets={"t": [ROWS + 9]})
    state = gone_on(w, close, end=ROWS + 9)
    loss = AcceptedLoss(
        ranges=[LostRange(topic="t", partition=0, begin=ROWS, end=ROWS + 5)],
        reason="gone",
        by="ada",
    )
    assert w.accepted_loss(state.genesis, state.sealed[NEXT]) == loss
    assert w.accepted_loss(state.genesis, state.sealed[DAY]) is None
    work = work_of(w, NEXT, "")
    assert work.loss == loss

    w.sessions.append(SessionEvent(session=NEXT, event="cleaned"))
    monkeypatch.setattr("spillway.verify.proof.check_query", lambda *_: None)

    class OfAny:
        fingerprint = ""

    def never() -> None:
        pytest.fail("Spark was started")

    prove = partial(verify, never, w, OfAny(), NEXT, bootstrap="b:1")  # type: ignore[arg-type]
    report_ = prove()
    assert (report_.complete, report_.details["loss"]) == (False, loss.model_dump())
    kafka(0, newest=ROWS + 9)
    assert prove().complete is False
    with pytest.raises(LossRefused, match="gone on without rows that ada had accepted as lost"):
        accept(w, NEXT)
    # More has gone since: that is accepted of a sealed session, beside what was accepted before.
    kafka(ROWS + 8, newest=ROWS + 9)
    with pytest.raises(InputGone, match="from offset 68 on"):
        prove()
    later = accept(w, NEXT, reason="and more")
    both = w.accepted_loss(state.genesis, state.sealed[NEXT])
    assert both is not None
    assert later.ranges == [LostRange(topic="t", partition=0, begin=ROWS, end=ROWS + 8)]
    assert (both.ranges, both.reason, both.by) == (later.ranges, "gone; and more", "ada")
    accept(w, NEXT)
    again = w.accepted_loss(state.genesis, state.sealed[NEXT])
    assert again is not None
    assert (again.offsets, again.reason) == (8, "gone")
    assert prove().complete is False


def test_a_verdict_adds_up_before_it_says_what_is_wrong() -> None:
    counts = {"expected": 9, "run_time": 4, "cleanup": 2, "missing": 0, "doubled": 0}
    details = {"keys": 1, "quarantined": 0, "seconds": 1.0, "problems": [], "differences": []}
    details |= {"corrections": {"results": 3}}
    table = verdict_table({"session": DAY, "complete": True, "details": details, **counts})
    named, numbers = (list(column.cells) for column in table.columns)
    assert named[1:4] == ["results at run time", "results by cleanup", "results by corrections"]
    assert numbers[:6] == ["9", "4", "2", "3", "0", "0"]
