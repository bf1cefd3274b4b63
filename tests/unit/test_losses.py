"""Accepting that input is gone for good."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from spillway.commands.losses import accepted_lines
from spillway.engine.join.results import result_schema
from spillway.losses import LossRefused, accept_loss
from spillway.protocol.state import AnotherQuery
from spillway.tables import NothingYet, SessionEvent, Warehouse
from spillway.tables.retention import proved
from spillway.verify.proof import InputGone, VerifyReport, verify
from spillway_schemas.journal import Topic
from spillway_schemas.losses import AcceptedLoss
from tests.integration.spilled_day import (
    DAY,
    NEXT,
    SPEC,
    SpilledDay,
    make_day,
    random_rows,
)

ROWS = 60


class View:
    """A cluster whose one topic begins at an offset."""

    def __init__(self, oldest: int, name: str = "c") -> None:
        self.oldest, self.name = oldest, name

    def cluster_id(self) -> str:
        return self.name

    def topics(self, names: list[str]) -> list[Topic]:
        return [Topic(name=name, id="x", partitions=1) for name in names]

    def beginning_offsets(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [self.oldest] for name in names}

    def end_offsets(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [ROWS] for name in names}


@pytest.fixture
def day(tmp_path: Path) -> SpilledDay:
    return make_day(str(tmp_path / "w"), random_rows(1, ROWS, 10, 2))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kafka holds everything from an offset on."""

    def holds_from(oldest: int) -> None:
        for module in ("spillway.losses", "spillway.verify.proof"):
            monkeypatch.setattr(f"{module}.demand_listener", lambda _: None)
            monkeypatch.setattr(f"{module}.cluster", lambda *_: nullcontext(View(oldest)))

    return holds_from


def accept(
    warehouse: Warehouse, session: str = DAY, fingerprint: str = "q", reason: str = "gone"
) -> AcceptedLoss:
    return accept_loss(warehouse, fingerprint, session, reason, "ada", bootstrap="b:1", client={})


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
    back = accept(w, reason="a replica had it")
    assert accepted_lines(DAY, back) == [
        f"Kafka holds all of {DAY} again: what was accepted is taken back"
    ]
    assert w.sessions.accepted_loss(DAY) is None


def test_another_cluster_is_not_asked(day: SpilledDay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spillway.losses.demand_listener", lambda _: None)
    monkeypatch.setattr("spillway.losses.cluster", lambda *_: nullcontext(View(7, "other")))
    with pytest.raises(LossRefused, match="b:1 is another Kafka cluster"):
        accept(day.warehouse())


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
    with pytest.raises(LossRefused, match=f"{NEXT} is not sealed.*`Offsets are lost`"):
        accept(w, NEXT)
    with pytest.raises(AnotherQuery):
        accept(w, fingerprint="other")
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
    with pytest.raises(InputGone, match=f"spillway accept-loss --session {DAY}"):
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
                "input is lost, so nothing can be proved: t/0 from offset 0 to 7. ada has accepted "
                "that: gone"
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
    kafka(9)  # more is gone than was accepted
    with pytest.raises(InputGone, match="from offset 9 on"):
        proved_()
