"""Days that the exchange's calendar ends, on real Kafka, under a clock that the test sets.

A stream that starts on a Sunday; a Monday that closes early, at whose close the broker is away and
Airflow late; a holiday; a seal that can never be fulfilled; a Wednesday at whose close the stream
is down; a Thursday and a Friday that are different by `session.overrides` alone. Record times in
Kafka are those of the exchange. Some rows say that they happened on another day.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from spillway.kafka import broker as kafka_broker
from spillway.kafka.client import KafkaCluster
from spillway.tables import Warehouse
from tests.commands import command_of
from tests.integration.day import STREAMS, Day, accepted, chained, messages, running, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

EARLY, AFTER, LAST = "2023-07-03", "2023-07-05", "2023-07-07"
DAYS = {
    EARLY: ("2023-06-30T16:05", "2023-07-03T13:05"),
    AFTER: ("2023-07-03T13:05", "2023-07-05T16:05"),
    LAST: ("2023-07-05T16:05", "2023-07-07T12:05"),
}
"""From close to close, each with its grace, by hand."""
OVERRIDES = "2023-07-06 closed; 2023-07-07 12:00"
TIMED = ("stock", "volume")
"""Streams whose rows say when they happened."""
ROWS = 1_200
NEVER = 10**6
"""An offset that no topic reaches."""


def ms(text: str) -> int:
    """Of a time in New York."""
    return int(datetime.fromisoformat(f"{text}-04:00").timestamp() * 1000)


class Exchange:
    """The day, its broker that may go away, and the exchange's clock."""

    def __init__(self, folder: Path, spark_env: dict[str, str]) -> None:
        self.clock = folder / "clock"
        self.broker = folder / "broker"
        self.ports = kafka_broker.free_port(), kafka_broker.free_port()
        self.start_broker()
        names = {stream: f"{stream}-calendar" for stream in STREAMS}
        bootstrap = f"127.0.0.1:{self.ports[0]}"
        view = KafkaCluster(bootstrap)
        view.create_topics(dict.fromkeys(names.values(), 2))
        view.close()
        extra = {"SESSION__BOUNDARY": "calendar"}
        self.day = Day(folder / "day", bootstrap, names, spark_env, extra=extra)
        query = self.day.folder / "query.toml"
        text = query.read_text()
        for stream in TIMED:
            text = text.replace(f"[streams.{stream}]\n", f'[streams.{stream}]\ntime = "ts"\n')
        query.write_text(text)
        self.sent = {topic: [0, 0] for topic in names.values()}
        """Rows of each partition so far."""

    def start_broker(self) -> None:
        kafka_broker.start(self.broker, self.ports[0], controller_port=self.ports[1])

    def it_is(self, text: str) -> None:
        """Set the clock to a time in New York."""
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(str(ms(text)))
        fresh.replace(self.clock)

    def rows_of(self, text: str, seed: int, rows: int = ROWS) -> None:
        """Rows that Kafka gets at a time; they say that morning, some of them one in 2026."""
        date = text[:10].encode()
        made = [
            (stream, value if number % 7 == 0 else value.replace(b"2026-01-05", date))
            for number, (stream, value) in enumerate(messages(seed, rows, keys=300))
        ]
        self.day.produce(made, ms(text))
        for number, (stream, _) in enumerate(made):
            self.sent[self.day.topics[stream]][number % 2] += 1

    def ends(self) -> dict[str, list[int]]:
        return {topic: list(rows) for topic, rows in self.sent.items()}

    def output(self, *arguments: str) -> tuple[int, str]:
        return self.day.output(*arguments)

    def log(self) -> str:
        path = self.day.folder / "log.txt"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, text: str, timeout_s: float = 120) -> None:
        wait_for(lambda: text in self.log(), timeout_s, f"{text!r} in the log")

    def wait_until_read(self) -> None:
        def read() -> bool:
            last = self.day.entries()[-1]
            return last["kind"] == "epoch" and last["end"] == self.ends()

        wait_for(read, 120, "everything is read", every_s=0.3)

    def sessions(self) -> dict[str, dict[str, Any]]:
        """What `status` says of each."""
        code, text = self.output("status", "--json")
        assert code == 0, text
        return {each["session"]: each for each in json.loads(text)["sessions"]}

    def outside(self, session: str) -> dict[str, int]:
        """Rows of each topic that kept their contract and happened outside the session's day."""
        begin, end = map(ms, DAYS[session])
        sealed, found = self.day.sealed(session), Counter[str]()
        for stream, rows in self.day.read_topics().items():
            topic = self.day.topics[stream]
            for partition, offset, value in rows:
                first, last = (sealed[side][topic][partition] for side in ("start", "end"))
                body = accepted(stream, value) if first <= offset < last else None
                if body is not None and stream in TIMED:
                    at = datetime.fromisoformat(body["ts"]).timestamp() * 1000
                    found[topic] += not begin <= at < end
        return dict(found)


@pytest.fixture
def exchange(
    tmp_path: Path, spark_env: dict[str, str], jars: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Exchange]:
    monkeypatch.setenv("EXCHANGE_CLOCK", str(tmp_path / "clock"))
    made = Exchange(tmp_path, spark_env)
    try:
        yield made
    finally:
        made.day.clean()
        kafka_broker.stop(made.broker)


@pytest.mark.soak  # in `make test` days end with their rows, and the calendar has its own tests
def test_days_end_by_the_calendar(exchange: Exchange) -> None:
    day = exchange.day
    exchange.it_is("2023-07-02T12:00")  # a Sunday
    with running(day, "stream") as stream:
        exchange.wait_for_log(f"term 1: session {EARLY}")
        exchange.it_is("2023-07-03T12:59")
        exchange.rows_of("2023-07-03T12:59", seed=1)
        exchange.wait_until_read()
        code, text = exchange.output("seal", "--session", EARLY, "--at", "close")
        assert code == 3, text
        assert "2023-07-03 are over at 2023-07-03 13:05:00 EDT" in text

        # The last rows come within the grace; then the broker goes, and with it the close passes.
        exchange.rows_of("2023-07-03T13:04", seed=2, rows=200)
        early_end = exchange.ends()
        exchange.wait_until_read()
        kafka_broker.stop(exchange.broker)
        exchange.it_is("2023-07-03T13:06")
        exchange.wait_for_log(f"{EARLY} has closed and waits for its seal")
        exchange.start_broker()
        exchange.rows_of("2023-07-03T13:06", seed=3)
        exchange.wait_for_log(f"sealed {EARLY}")
        exchange.wait_until_read()
        assert stream.poll() is None, day.tail()

        # Airflow comes a day late, on the holiday.
        exchange.it_is("2023-07-04T13:00")
        code, text = exchange.output("seal", "--session", EARLY, "--at", "close")
        assert code == 0, text
        assert f"{EARLY} is sealed already" in text

        # A seal that cannot be fulfilled is taken back, and the day goes on.
        exchange.it_is("2023-07-05T10:00")
        never = {topic: [NEVER, NEVER] for topic in exchange.sent}
        wrong = command_of("seal", "seal/wrong", session=AFTER, offsets=never)
        Warehouse(str(day.folder / "warehouse"), fsync=False).commands.append(wrong)
        wait_for(lambda: pending_seals(day) == ["seal/wrong"], 120, "the seal is accepted")
        exchange.rows_of("2023-07-05T10:00", seed=4)
        exchange.wait_until_read()
        assert exchange.sessions()[AFTER]["stage"] == "ending"
        code, text = exchange.output("status")
        text = " ".join(text.split())
        assert "rows of stock-calendar" in text
        assert f"happened outside the day of {AFTER}" in text
        day.ok("seal", "--withdraw", "--session", AFTER, "--reason", "wrong")
        wait_for(lambda: day.entries()[-1].get("withdrawn") == "seal/wrong", 120, "withdrawn")
        assert exchange.sessions()[AFTER]["stage"] == "open"
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(120) == 0, day.tail()

    # The stream is down at the close, until the next day is over, too. That is not the Thursday,
    # for it has become a holiday; and the Friday ends at noon.
    exchange.rows_of("2023-07-05T16:04", seed=5, rows=200)
    after_end = exchange.ends()
    exchange.rows_of("2023-07-05T16:06", seed=6)
    day.extra["SESSION__OVERRIDES"] = OVERRIDES
    exchange.rows_of("2023-07-07T12:04", seed=7, rows=200)
    last_end = exchange.ends()
    exchange.rows_of("2023-07-07T12:06", seed=8, rows=200)
    exchange.it_is("2023-07-07T13:00")
    commands = [["stream", "--until-sealed", session] for session in (AFTER, LAST)]
    for session in (EARLY, AFTER, LAST):
        commands += [["cleanup", "--session", session], ["verify", "--session", session]]
    day.ok(*chained(*commands), timeout_s=400)
    told = exchange.sessions()
    for session, end in ((EARLY, early_end), (AFTER, after_end), (LAST, last_end)):
        assert day.sealed(session)["end"] == end, session
        day.check(session)
        assert told[session]["outside"] == exchange.outside(session)
        assert min(told[session]["outside"].values()) > 0
        assert told[session]["outside"].keys() == {day.topics[stream] for stream in TIMED}


def pending_seals(day: Day) -> list[str]:
    """Ids of the seals that are pending."""
    pending: list[str] = []
    for entry in day.entries():
        if entry["kind"] == "epoch":
            if entry["sealed"] or entry["withdrawn"]:
                pending = []
            if entry["seal"] and not entry["sealed"]:
                pending = [entry["seal"]["command"]]
    return pending
