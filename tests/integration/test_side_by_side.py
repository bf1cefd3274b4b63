"""Two queries of one settings file run at once, on topics that they share: a day of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spillway.kafka.broker import free_port
from tests.integration.day import STREAMS, Day, messages, running, wait_for
from tests.integration.failpoints import THEN
from tests.integration.query_day import QueryDay
from tests.scrape import figure, scrape, total

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

DATE, NEXT = "2026-01-05", "2026-01-06"
ROWS = 1_200
SETTINGS = """
[queries.threes]
query = "threes.toml"
state.slots = 2
metrics.listen = "127.0.0.1:{}"
[queries.pairs]
query = "pairs.toml"
state.slots = 1
metrics.listen = "127.0.0.1:{}"
"""


@dataclass
class SideDay(QueryDay):
    """One that knows how many rows its topics have, and runs its commands in one process."""

    read: dict[str, int] = field(default_factory=dict)
    """Rows that each of its topics has."""

    def has_read(self) -> bool:
        """Whether its journal has all rows of its topics, and of no others."""
        epochs = self.journal.epochs()
        return bool(epochs) and {t: sum(e) for t, e in epochs[-1]["end"].items()} == self.read

    def commands(self, *commands: list[str]) -> list[str]:
        """Words that run commands of this query, one after the other, in one process."""
        named = [[THEN, "--query", self.name, *command] for command in commands]
        return [word for command in named for word in command][1:]

    def whole_day(self) -> list[str]:
        """Words that stream to the seal, clean up and verify."""
        return self.commands(
            ["stream", "--session", DATE, "--until-sealed", DATE],
            ["cleanup", "--session", DATE],
            ["verify", "--session", DATE],
        )

    def seal(self) -> None:
        """Ask for the seal of this query's day."""
        self.ok(*self.commands(["seal", "--session", DATE]))


def statuses(day: Day) -> dict[str, dict[str, Any]]:
    """What `spillway status` says of each query."""
    code, told = day.output("status", "--json")
    assert code == 0, told
    return {each["name"]: each["status"] for each in json.loads(told)}


def test_two_queries_of_one_file_at_once(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> None:
    """One is sealed, cleaned and proved while the other goes on, and reads rows that the first
    has not in its day. Each has its own tables, state, status and figures."""
    names = topics(*STREAMS, partitions=2)
    ports = free_port(), free_port()
    threes, pairs = (
        SideDay(
            tmp_path / "day",
            broker,
            {stream: names[stream] for stream in streams},
            spark_env,
            budget_bytes=48 << 10,
            max_rows=1_000,
            name=name,
        )
        for name, streams in (("threes", STREAMS), ("pairs", STREAMS[:2]))
    )
    both = (threes, pairs)
    listens = [f"127.0.0.1:{port}" for port in ports]
    (threes.folder / "spillway.toml").write_text(SETTINGS.format(*ports))

    def send(seed: int) -> None:
        made = messages(seed, ROWS, keys=900)
        threes.produce(made)
        for day in both:
            for stream, topic in day.topics.items():
                day.read[topic] = day.read.get(topic, 0) + sum(s == stream for s, _ in made)

    def all_read(day: SideDay) -> None:
        wait_for(day.has_read, 120, f"{day.name} reads all rows")

    send(71)
    with running(threes, *threes.whole_day()) as first, running(pairs, *pairs.whole_day()) as other:
        for day in both:
            all_read(day)
        send(72)
        for day, listen in zip(both, listens, strict=True):
            all_read(day)
            check_figures(day, listen)
        assert {each.name for each in (threes.state / "queries").iterdir()} == {"threes", "pairs"}
        assert threes.slots_of_state() == {"slot-0", "slot-1"}
        assert pairs.slots_of_state() == {"slot-0"}

        threes.seal()
        assert first.wait(120) == 0, threes.tail()
        send(73)
        all_read(pairs)
        assert other.poll() is None, pairs.tail()
        assert scrape(listens[0]) == {}
        said = statuses(pairs)
        assert [(name, each["session"]) for name, each in said.items()] == [
            ("threes", NEXT),
            ("pairs", DATE),
        ]
        check_status(said["threes"], threes, rows=2 * ROWS, stage="cleaned")
        check_status(said["pairs"], pairs, rows=sum(pairs.read.values()), stage="open")

        pairs.seal()
        assert other.wait(120) == 0, pairs.tail()
    for day in both:
        phases = day.check(DATE)
        assert phases["run-time"] > 0
        assert phases["cleanup"] > 0, f"{day.name} has spilled nothing: it shows less"
    assert {each.name for each in (threes.folder / "warehouse").iterdir()} == {"queries"}
    assert threes.sealed(DATE)["end"] != pairs.sealed(DATE)["end"]
    threes.clean()


def check_figures(day: SideDay, listen: str) -> None:
    """What the query's stream serves is what its own tables hold."""

    def is_told() -> bool:
        return total(scrape(listen), "spillway_rows_total") == sum(day.read.values())

    wait_for(is_told, 30, f"the stream of {day.name} tells of all rows")
    found = scrape(listen)
    id_ = day.entries()[0]["warehouse_id"]
    [of] = [dict(labels) for name, labels in found if name == "spillway_stream_info"]
    assert (of["query"], of["warehouse"], of["session"]) == (day.name, id_, DATE)
    assert {dict(labels)["topic"] for name, labels in found if name == "spillway_rows_total"} == {
        *day.topics.values()
    }
    assert figure(found, "spillway_results_total") == len(day.results())
    assert figure(found, "spillway_epochs_total") == len(day.journal.epochs())


def check_status(said: dict[str, Any], day: SideDay, *, rows: int, stage: str) -> None:
    """What `status` says of a query is of its own journal and tables."""
    assert said["warehouse_id"] == day.entries()[0]["warehouse_id"]
    assert said["epoch"] == len(day.journal.epochs()) - 1
    assert {each["topic"] for each in said["topics"]} == set(day.topics.values())
    [session] = [each for each in said["sessions"] if each["session"] == DATE]
    assert (session["stage"], sum(session["rows_in"].values())) == (stage, rows)
    is_proved = session["verdict"] is not None and session["verdict"]["complete"]
    assert is_proved == (stage == "cleaned")
    results = session["results_run_time"] + (session["results_cleanup"] or 0)
    assert results == len(day.results(DATE))
