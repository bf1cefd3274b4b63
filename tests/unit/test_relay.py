"""What a relay writes, and when it does not begin."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.join.results import PHASES
from spillway.following.position import (
    EVENTS,
    FollowStep,
    Newest,
    Position,
    Seen,
    UnderWay,
    another_history,
    ended_phases,
    next_step,
    taken,
)
from spillway.following.rows import newest_of
from spillway.kafka.client import KafkaUnavailable
from spillway.relay.encoding import records
from spillway.relay.kept import (
    RelayPosition,
    RelayRefused,
    UnfitTopic,
    begin,
    demand_fit,
    position_topic,
    read_kept,
)
from spillway.relay.lines import begin_line, step_line
from spillway.relay.outlet import OVERHEAD_BYTES, Outlet, _demand_compaction
from spillway.relay.run import Relayed, Telling, relay
from spillway.tables import ActiveFile, SessionEvent

# --- records ---------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        pa.field("symbol", pa.string(), nullable=False),
        ("minute", pa.timestamp("us", "UTC")),
        ("price", pa.float64()),
        ("shares", pa.int64()),
        ("fair", pa.bool_()),
        ("day", pa.date32()),
        ("fee", pa.decimal128(20, 3)),
        ("text", pa.string()),
        ("partition", pa.int32()),
    ]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "symbol": TEXTS,
            "minute": st.none()
            | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
                lambda at: at.replace(tzinfo=UTC)
            ),
            "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "shares": st.none() | st.integers(-(2**63), 2**63 - 1),
            "fair": st.none() | st.booleans(),
            "day": st.none() | st.dates(date(1970, 1, 1), date(2100, 1, 1)),
            "fee": st.none() | st.integers(-(10**15), 10**15).map(lambda n: Decimal(n).scaleb(-3)),
            "text": st.none() | TEXTS,
            "partition": st.integers(0, 100),
        }
    ),
    min_size=1,
    max_size=6,
)


def plain(value: Any) -> Any:
    """A value as JSON has it; what a reader must find."""
    match value:
        case datetime():
            whole, micros = divmod(value - datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1))
            at = datetime(1970, 1, 1) + timedelta(seconds=whole)
            return f"{at.isoformat()}.{micros.microseconds:06d}Z"
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:.3f}"
    return value


@given(ROWS)
def test_a_value_has_every_column_and_loses_nothing(rows: list[dict[str, Any]]) -> None:
    keys, values = records(pa.Table.from_pylist(rows, schema=SCHEMA), ["symbol"])
    wanted = [{name: plain(value) for name, value in row.items()} for row in rows]
    assert [json.loads(value) for value in values.to_pylist()] == wanted
    assert [list(json.loads(value)) for value in values.to_pylist()] == [SCHEMA.names] * len(rows)
    assert keys.to_pylist() == [row["symbol"] for row in rows]
    keys, again = records(pa.Table.from_pylist(rows, schema=SCHEMA), ["symbol", "minute"])
    assert again.to_pylist() == values.to_pylist()
    named = [{name: row[name] for name in ("symbol", "minute")} for row in wanted]
    assert [json.loads(key) for key in keys.to_pylist()] == named
    keys, _ = records(pa.Table.from_pylist(rows, schema=SCHEMA), ["partition"])
    assert [json.loads(key) for key in keys.to_pylist()] == [
        {"partition": row["partition"]} for row in rows
    ]


def test_every_phase_of_results_is_followed() -> None:
    """Who adds one decides here when its rows are all there."""
    assert {"run-time", *EVENTS.values()} == set(PHASES)


def test_the_newest_row_is_one_of_run_time() -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    rows = [(3, "run-time", 5), (4, "run-time", 9), (4, "run-time", 7), (8, "cleanup", 99)]
    table = pa.table(
        {
            "epoch": pa.array([epoch for epoch, _, _ in rows]),
            "phase": [phase for _, phase, _ in rows],
            "committed_at": pa.array(
                [at + timedelta(microseconds=us) for _, _, us in rows], pa.timestamp("us", "UTC")
            ),
        }
    )
    first = int(at.timestamp()) * 1_000_000
    assert newest_of(table, None) == Newest(4, first + 9)
    assert newest_of(table, Newest(3, 1)) == Newest(4, first + 9)
    assert newest_of(table, Newest(5, 1)) == Newest(5, 1)
    assert newest_of(table.slice(3), None) is None


# --- where a relay begins ---------------------------------------------------------------------

KEPT = RelayPosition(
    warehouse="w",
    topic="id",
    rows=7,
    position=Position(
        epoch=3,
        event=1,
        session="2026-01-05",
        newest=Newest(3, 5),
        under_way=UnderWay(phase="cleanup", upto=4, parts=3, done=1),
    ),
)


def begun(kept: RelayPosition | None, **given: Any) -> RelayPosition:
    known = {"topic_id": "id", "warehouse": "w", "is_empty": False, "from_now": False}
    return begin(kept, topic="t", **(known | given))


def test_where_a_relay_begins() -> None:
    assert begun(KEPT) == begun(KEPT, from_now=True) == begun(KEPT, is_empty=True) == KEPT
    assert begun(None, is_empty=True) == RelayPosition(warehouse="w", topic="id")
    assert begun(None, from_now=True) == RelayPosition(warehouse="w", topic="id")
    refusals = {
        "t has records, and t-position does not say": {"kept": None},
        "results of another warehouse": {"kept": KEPT, "warehouse": "v"},
        "was deleted and made again": {"kept": KEPT, "topic_id": "other"},
    }
    for said, given_ in refusals.items():
        with pytest.raises(RelayRefused, match=said):
            begun(**given_)


def test_what_is_kept_is_read_again() -> None:
    text = KEPT.model_dump_json().encode()
    assert read_kept(text, "t") == KEPT
    later = json.dumps(json.loads(text) | {"later": 2}).encode()
    for wrong in (later, b"no JSON", b"{}"):
        with pytest.raises(RelayRefused, match="the last record of t-position is not a position"):
            read_kept(wrong, "t")


@pytest.mark.parametrize(
    "under_way",
    [
        {},  # version 0.1.0
        {"session": "2026-01-06", "revision": 0},  # before what `sessions` said was kept
    ],
)
def test_what_earlier_versions_have_kept_is_read_and_gone_on_with(
    under_way: dict[str, object],
) -> None:
    text = json.dumps(
        {
            "warehouse": "w",
            "topic": "id",
            "rows": 7,
            "position": {
                "epoch": 3,
                "event": 1,
                "session": "2026-01-05",
                "newest": [3, 5],
                "under_way": {"phase": "cleanup", "upto": 2, "parts": 3, "done": 1} | under_way,
            },
        }
    )
    position = read_kept(text.encode(), "t").position
    ended = ended_phases(
        SessionEvent(session=day, event=event, cleanup=4)
        for day, event in [
            ("2026-01-05", "sealed"),
            ("2026-01-05", "cleaned"),
            ("2026-01-06", "cleaned"),
        ]
    )
    seen = Seen(3, (), ended)
    assert another_history(position, seen, agrees=True) is None
    step = next_step(position, seen)
    assert step is not None
    assert (step.session, step.part, step.parts) == ("2026-01-06", 1, 3)
    later = taken(taken(position, step, position.newest), replace(step, part=2), position.newest)
    assert (later.event, later.history) == (2, ended[-1].history)


def test_topics_that_no_relay_writes_to() -> None:
    demand_fit("results", ["stock"])
    with pytest.raises(UnfitTopic, match="stock is read by the query"):
        demand_fit("stock", ["stock"])
    with pytest.raises(UnfitTopic, match="is read by the query"):
        demand_fit("stock", [position_topic("stock")])
    for name in ("a b", "x" * 245, ""):
        if name:
            with pytest.raises(UnfitTopic, match="is no name of a topic"):
                demand_fit(name, [])


# --- what is told while Kafka is away ---------------------------------------------------------


class Looking:
    """A follower of a table with one epoch, which has no rows."""

    def look(self) -> Seen:
        return Seen(0, [ActiveFile("a", 8, 1, {}, 0, 0, ("2026-01-05", "2026-01-05"))], ())

    def check(self, position: Position, seen: Seen) -> None:
        """It is the same."""

    def read(self, step: FollowStep) -> list[pa.Table]:
        return []


class Attempts(threading.Event):
    """What each attempt to connect meets: Kafka that is away for a reason, or that goes away with
    the first transaction, or that answers. The relay ends when there is none left."""

    topic, topic_id, is_empty = "t", "id", False
    kept = RelayPosition(warehouse="w", topic="id")

    def __init__(self, *met: str) -> None:
        super().__init__()
        self._met = list(met)
        self._now = ""

    def wait(self, timeout: float | None = None) -> bool:
        if not self._met:
            self.set()
        return self.is_set()

    @contextmanager
    def connect(self) -> Iterator[Attempts]:
        self._now = self._met.pop(0)
        if self._now not in ("answers", "goes away"):
            raise KafkaUnavailable(self._now, "look at it")
        yield self

    def begin(self) -> None:
        if self._now == "goes away":
            raise KafkaUnavailable("away", "look at it")

    def send(self, rows: pa.Table) -> None:
        """There is none."""

    def commit(self, kept: RelayPosition) -> None:
        """Into nothing."""

    abort = begin

    def told(self, *, once: bool = False) -> list[str]:
        told: list[str] = []
        follower: Any = Looking()
        telling = Telling(
            on_start=lambda _: told.append("begins"),
            on_step=lambda step: told.append(f"epoch {step.step.upto}"),
            on_trouble=told.append,
        )
        relay(
            follower,
            self.connect,
            "w",
            once=once,
            from_now=False,
            stop=self,
            telling=telling,
            fits=lambda: None,
        )
        return told


def test_that_kafka_is_away_is_told_once_and_that_it_is_back() -> None:
    attempts = Attempts("goes away", "away", "away", "refuses", "refuses", "goes away", "answers")
    assert [each.split(".")[0].split(": ")[0] for each in attempts.told()] == [
        "begins",
        "away",
        "refuses",
        "Kafka answers again",
        "away",
        "Kafka answers again",
        "epoch 0",
    ]


@pytest.mark.parametrize("once", [False, True])
def test_kafka_that_does_not_answer_at_the_start_is_an_error(once: bool) -> None:
    with pytest.raises(KafkaUnavailable, match="away"):
        Attempts("away").told(once=once)
    if once:
        with pytest.raises(KafkaUnavailable, match="away"):
            Attempts("goes away").told(once=once)


# --- what the outlet does with large records ---------------------------------------------------


class Sent:
    """A sender that keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def partitions(self, topic: str) -> int:
        return 1

    def send_rows(self, topic: str, places: Any, keys: Any, values: Any, *_: Any) -> None:
        if len(values):
            self.batches.append(values.to_pylist())


def sent(sizes: list[int], most_bytes: int) -> list[list[int]]:
    """The sizes of records, key and value, as they are batched for a topic that takes so much."""
    outlet = Outlet.__new__(Outlet)
    sender: Any = Sent()
    outlet.topic, outlet._keys, outlet._identity = "t", ["key"], ["key"]
    outlet._most_bytes, outlet._sender = most_bytes, sender
    least = len(json.dumps({"key": "k", "text": ""}).replace(" ", "")) + 1
    texts = ["x" * (size - least) for size in sizes]
    outlet.send(pa.table({"key": ["k"] * len(sizes), "text": texts}))
    return [[len(value) + 1 for value in batch] for batch in sender.batches]


def test_a_large_record_goes_alone() -> None:
    """Two of a third of what the topic takes might be one batch that it refuses."""
    assert sent([50, 900, 40, 40, 301, 300, 300], 900 + OVERHEAD_BYTES) == [
        [50],
        [900],
        [40, 40, 301, 300, 300],
    ]
    assert sent([334, 333, 333, 334], 1_000) == [[334], [333, 333], [334]]


def test_a_record_may_be_as_large_as_the_topic_takes() -> None:
    assert sent([500], 500 + OVERHEAD_BYTES) == [[500]]
    with pytest.raises(RelayRefused, match="a record of 501 bytes, and topic t takes 500 "):
        sent([501], 500 + OVERHEAD_BYTES)


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact", ""])
def test_a_position_that_kafka_would_delete_is_refused(policy: str) -> None:
    _demand_compaction("t-position", " compact ")
    with pytest.raises(RelayRefused, match=f"cleanup.policy={policy or 'unknown'}: Kafka would"):
        _demand_compaction("t-position", policy)


# --- lines ------------------------------------------------------------------------------------


def test_lines() -> None:
    assert (
        begin_line("t", RelayPosition(warehouse="w", topic="id"))
        == "topic t: begins with the first result"
    )
    assert begin_line("t", KEPT) == "topic t: goes on after epoch 3, 7 rows relayed so far"
    step = FollowStep("run-time", 9, (), after=3)
    assert step_line(Relayed(step, 1, 8, 0.5)) == "epochs 4 to 9: 1 row | 8 in all | 500 ms"
    step = FollowStep("run-time", 4, (), after=3, part=1, parts=3)
    assert step_line(Relayed(step, 2, 8, 1.25)).startswith("epoch 4, part 2 of 3: 2 rows | ")
    step = FollowStep("cleanup", 1, (), session="2026-01-05")
    assert (
        step_line(Relayed(step, 2, 8, 1.25)) == "cleanup of 2026-01-05: 2 rows | 8 in all | 1.2 s"
    )
