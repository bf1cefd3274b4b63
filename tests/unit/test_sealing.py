"""`spillway seal`: when it may be asked for, what is written, what is taken back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spillway import sealing
from spillway.cli import main
from spillway.kafka.client import AnotherCluster
from spillway.processes import process_identity
from spillway.sealing import SealRefused, TimeError, request_seal, request_withdrawal
from spillway.tables import NothingYet, Warehouse, opened
from spillway_schemas.commands import Command
from spillway_schemas.journal import Claim, Epoch, Genesis, Offsets, Topic
from spillway_schemas.settings import Settings, WarehouseSettings, load_settings
from tests.protocol_entries import (
    DAY,
    NEXT,
    TOPICS,
    claim,
    ends,
    epoch,
    genesis,
    seal,
    sealed,
)
from tests.report_journal import fill_journal, open_warehouse

BEGUN = [genesis(), claim(1, 1), epoch(2, 0, ends(4, 4, 4))]
CLOSE = "2026-01-05T16:05:00-05:00"
"""Of `DAY` at the New York exchange, with the default grace."""


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


class Broker:
    """A cluster that is asked for offsets."""

    asked: ClassVar[list[int | None]] = []
    id: ClassVar[str] = "c"
    anew: ClassVar[dict[str, str]] = {}
    """Ids of topics that were made anew."""

    def cluster_id(self) -> str:
        return self.id

    def topics(self, names: Sequence[str]) -> list[Topic]:
        return [
            each.model_copy(update={"id": self.anew.get(each.name, each.id)})
            for each in TOPICS
            if each.name in names
        ]

    def end_offsets(self, topics: Sequence[str]) -> Offsets:
        self.asked.append(None)
        return {topic: [9, 9] for topic in topics}

    def offsets_for_time(self, topics: Sequence[str], at_ms: int) -> Offsets:
        self.asked.append(at_ms)
        return {topic: [7, 7] for topic in topics}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What Kafka is asked: times in ms, None for the topics' ends."""

    @contextmanager
    def cluster(*_: Any) -> Iterator[Broker]:
        yield Broker()

    Broker.asked = []
    monkeypatch.setattr(sealing, "cluster", cluster)
    monkeypatch.setattr(sealing, "demand_listener", lambda _: None)
    return Broker.asked


class Place:
    """A warehouse with a journal."""

    def __init__(self, root: Path) -> None:
        self.settings: Settings = load_settings(None, {"warehouse.root": str(root)})[0]
        self.warehouse: Warehouse = open_warehouse(str(root))

    def journal(self, *entries: Genesis | Claim | Epoch) -> None:
        fill_journal(
            self.warehouse, [each.model_copy(update={"written_at": CLOSE}) for each in entries]
        )

    def commands(self) -> list[Command]:
        return [each.command for each in self.warehouse.commands.read()]

    def seal(self, session: str = DAY, at: str = "now", now: str = CLOSE) -> str:
        return request_seal(self.settings, session, at, "why", "alice", clock=lambda: ms(now))

    def withdraw(self, session: str = DAY) -> str:
        return request_withdrawal(
            self.settings, session, "too early", "bob", clock=lambda: ms(CLOSE)
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "w")


def test_at_read_is_where_the_stream_stands(place: Place, broker: list[int | None]) -> None:
    """Whatever the topics hold; the stream may have read further when it obeys."""
    place.journal(*BEGUN)
    told = place.seal(at="read")
    assert told == f"{DAY} will be sealed where the stream stands: a 4, 4; b 4"
    [command] = place.commands()
    assert (command.offsets, command.at) == (ends(4, 4, 4), "read")  # type: ignore[union-attr]
    assert broker == [], "Kafka is not asked"


def test_offsets_of_another_cluster_end_no_session(
    place: Place, broker: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those of a topic that was made anew. They would cut the day anywhere, for good."""
    place.journal(*BEGUN)
    monkeypatch.setattr(Broker, "id", "other")
    with pytest.raises(AnotherCluster, match=r"another Kafka cluster \(other\) than the one"):
        place.seal()
    assert broker == []
    monkeypatch.setattr(Broker, "id", "c")
    monkeypatch.setattr(Broker, "anew", {"b": "id-c"})
    with pytest.raises(SealRefused, match="topic b was deleted and created again"):
        place.seal()
    assert place.commands() == []


def test_at_close_is_refused_before_close_and_grace(place: Place, broker: list[int | None]) -> None:
    place.journal(*BEGUN)
    with pytest.raises(SealRefused) as refused:
        place.seal(at="close", now="2026-01-05T16:04:59-05:00")
    assert str(refused.value) == (
        "close and grace of 2026-01-05 are over at 2026-01-05 16:05:00 EST "
        "(2026-01-05T21:05:00.000+00:00), in 1.0 s. Ask again then, or end the session where its "
        "topics end now with --at now"
    )
    assert (place.commands(), broker) == ([], []), "nothing is asked and nothing is written"
    place.seal(at="close")
    [command] = place.commands()
    assert (broker, command.offsets["a"]) == ([ms(CLOSE)], [7, 7])
    assert command.at == "close 2026-01-05T21:05:00.000+00:00"


def test_a_time_is_refused_before_it_has_come(place: Place, broker: list[int | None]) -> None:
    place.journal(*BEGUN)
    at = "2026-01-05T15:00:00-05:00"
    with pytest.raises(SealRefused, match=rf"{at} is still to come, in 1 h\. .* --at now"):
        place.seal(at=at, now="2026-01-05T14:00:00-05:00")
    assert (place.commands(), broker) == ([], [])
    told = place.seal(at=at, now=at)
    assert f"{DAY} will be sealed at 2026-01-05T20:00:00.000+00:00: " in told
    assert broker == [ms(at)]


def test_an_end_that_the_stream_has_passed_is_said(place: Place, broker: list[int | None]) -> None:
    place.journal(genesis(), claim(1, 1), epoch(2, 0, ends(9, 8, 4)))
    told = place.seal(at="close")
    assert "will be sealed at close" in told
    assert f"read 3 offsets beyond that already: they stay in {DAY}" in told


def test_rows_of_the_day_before_are_not_said_to_stay_in_this_one(
    place: Place, broker: list[int | None]
) -> None:
    end = ends(9, 8, 4)
    done = epoch(2, 0, end, session=NEXT, seal=seal(end), sealed=sealed(end, 0))
    place.journal(genesis(), claim(1, 1), done)
    told = place.seal(NEXT, at=CLOSE, now="2026-01-06T17:00:00-05:00")
    assert "beyond that already" not in told
    assert told.endswith(
        f"That is 3 offsets before the begin of {NEXT}, which ends no earlier than where it "
        "begins: is the time right?"
    )


def test_now_is_the_topics_ends(place: Place, broker: list[int | None]) -> None:
    place.journal(*BEGUN)
    assert place.seal(now="2026-01-05T10:00:00-05:00") == (
        "2026-01-05 will be sealed where its topics end now: a 9, 9; b 9, 9"
    )
    [command] = place.commands()
    assert (command.kind, command.session, command.offsets["a"]) == ("seal", DAY, [9, 9])
    assert (command.reason, command.by, command.at) == ("why", "alice", "now")
    assert broker == [None]
    assert place.seal(at="read") == (
        f"a seal of {DAY} is pending already, and its end stays. Another one: first "
        f"`spillway seal --session {DAY} --withdraw`"
    )
    assert len(place.commands()) == 1


def test_what_cannot_be_sealed(place: Place, broker: list[int | None]) -> None:
    for ask in (place.seal, place.withdraw):
        with pytest.raises(NothingYet, match="is empty: start `spillway stream`, or name another"):
            ask()
    place.journal(*BEGUN)
    with pytest.raises(
        SealRefused, match=f"{NEXT} cannot be sealed: not the open .* {DAY}` ends it$"
    ):
        place.seal(NEXT)
    end = ends(5, 5, 5)
    place.journal(epoch(3, 1, end, session=NEXT, seal=seal(end), sealed=sealed(end, 1)))
    assert place.seal() == f"{DAY} is sealed already (epoch 1)"
    assert broker == []


def test_a_seal_that_the_stream_has_not_read_is_withdrawn(
    place: Place, broker: list[int | None]
) -> None:
    place.journal(*BEGUN)
    place.seal()
    assert place.withdraw() == (
        f"the seal of {DAY} will be withdrawn, unless the stream passes its end before"
    )
    [sealing_, command] = place.commands()
    assert (command.kind, command.session, command.seal) == ("withdraw", DAY, sealing_.id)
    assert (command.reason, command.by) == ("too early", "bob")
    assert place.withdraw() == f"no seal of {DAY} is pending: it is open"
    assert len(place.commands()) == 2, "it is answered, not repeated"
    place.seal()
    assert [each.kind for each in place.commands()] == ["seal", "withdraw", "seal"]
    place.withdraw()
    assert place.commands()[-1].seal == place.commands()[-2].id, "the seal that is pending now"


def test_a_pending_seal_is_withdrawn(place: Place, broker: list[int | None]) -> None:
    place.journal(*BEGUN, epoch(3, 1, ends(5, 5, 5), seal=seal(ends(5, 9, 9))))
    place.withdraw()
    [command] = place.commands()
    assert command.seal == "close"
    assert place.withdraw() == f"no seal of {DAY} is pending: it is open"
    place.seal()  # The stream will read it after the withdrawal.
    assert [each.kind for each in place.commands()] == ["withdraw", "seal"]


def test_the_seal_of_another_session_than_the_pending_one_is_refused(place: Place) -> None:
    place.journal(*BEGUN, epoch(3, 1, ends(5, 5, 5), seal=seal(ends(5, 9, 9))))
    with pytest.raises(SealRefused, match=f"not the open session: that is {DAY}"):
        place.seal(NEXT)


def test_a_seal_whose_end_was_passed_is_not_withdrawn(place: Place) -> None:
    place.journal(*BEGUN, epoch(3, 1, ends(6, 5, 5), seal=seal(ends(5, 9, 9))))
    with pytest.raises(SealRefused) as refused:
        place.withdraw()
    assert str(refused.value) == (
        f"the seal of {DAY} cannot be withdrawn: rows beyond its end are read and belong to "
        f"{NEXT} (a/0 to 6). {DAY} is sealed once the rest has been read: a/1 from 5 to 9, b/0 "
        "from 5 to 9"
    )
    with pytest.raises(SealRefused, match=f"no seal of {NEXT} is pending"):
        place.withdraw(NEXT)
    assert place.commands() == []


def test_a_sealed_session_is_final(place: Place) -> None:
    end = ends(5, 5, 5)
    place.journal(*BEGUN, epoch(3, 1, end, session=NEXT, seal=seal(end), sealed=sealed(end, 1)))
    with pytest.raises(SealRefused, match="is sealed since epoch 1: that is final"):
        place.withdraw()


def test_a_command_says_what_was_asked_for_when_by_whom(
    place: Place, broker: list[int | None]
) -> None:
    place.journal(*BEGUN)
    place.seal()
    place.withdraw()
    asked, back = place.commands()
    for command, kind, reason, by in (
        (asked, "seal", "why", "alice"),
        (back, "withdraw", "too early", "bob"),
    ):
        assert re.fullmatch(rf"{kind}/{DAY}/[0-9a-f]{{8}}", command.id)
        assert command.issued_at == "2026-01-05T21:05:00.000+00:00"
        assert (command.reason, command.by) == (reason, by)


def test_kafka_and_the_warehouse_are_those_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    @contextmanager
    def cluster(servers: str, options: Any) -> Iterator[Broker]:
        given.append((servers, options))
        yield Broker()

    def warehouse(place: WarehouseSettings) -> Warehouse:
        given.append(place)
        return opened(place)

    monkeypatch.setattr(sealing, "cluster", cluster)
    monkeypatch.setattr(sealing, "demand_listener", given.append)
    monkeypatch.setattr(sealing, "opened", warehouse)
    place = Place(tmp_path / "w")
    place.journal(*BEGUN)
    place.seal()
    settings = place.settings
    assert given == [
        settings.warehouse,
        settings.kafka.bootstrap_servers,
        (settings.kafka.bootstrap_servers, settings.kafka.options),
    ]


@pytest.mark.parametrize("runs", [False, True])
def test_that_no_stream_obeys_is_said(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    runs: bool,
) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    own = process_identity()
    process = own if runs else own.rpartition(" ")[0] + " 1"
    begun, claimed, ended = BEGUN
    place.journal(
        begun,
        claimed.model_copy(update={"process": process}),
        ended.model_copy(update={"started_at": CLOSE}),
    )
    words = ["--set", f"warehouse.root={tmp_path / 'w'}"]

    def told(*more: str) -> str:
        with pytest.raises(SystemExit) as it:
            main([*words, *more])
        assert it.value.code == 0
        return capsys.readouterr().err

    assert told("seal", "--session", DAY, "--withdraw") == "", "nothing waits"
    assert told("rebalance", "--dry-run") == "", "nothing waits"
    for asked in (["seal", "--session", DAY, "--at", "read"], ["rebalance", "--budget", "0:1GiB"]):
        assert ("no stream runs here" in told(*asked)) is not runs


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (
            "noon",
            "--at 'noon': write now, read, close, or a time such as 2026-01-05T16:00:00-05:00",
        ),
        (
            "2026-01-05",
            "--at '2026-01-05' has no offset; write e.g. 2026-01-05T16:00:00-05:00 or "
            "2026-01-05T16:00:00Z",
        ),
        (
            "2026-01-05T12:30:00",
            "--at '2026-01-05T12:30:00' has no offset; write e.g. 2026-01-05T12:30:00-05:00 or "
            "2026-01-05T12:30:00Z",
        ),
    ],
)
def test_a_time_needs_an_offset(place: Place, broker: list[int | None], at: str, why: str) -> None:
    place.journal(*BEGUN)
    with pytest.raises(TimeError) as refused:
        place.seal(at=at)
    assert str(refused.value) == why
    assert (place.commands(), broker) == ([], [])
