"""The query's topics: which exist, which are made, and that no other is touched."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from spillway import cli, topics
from spillway.produce.summary import ProducedTally, Summary
from spillway_schemas.journal import Topic

SERVER = "kafka.example:9092"


class Broker:
    """As much of a cluster as is asked here."""

    def __init__(self, there: dict[str, int]) -> None:
        self.there = there
        self.made: list[tuple[str, int, int]] = []

    def existing_topics(self) -> list[str]:
        return sorted(self.there)

    def create_topics(self, partitions: Mapping[str, int], *, replication: int) -> list[str]:
        for name, count in partitions.items():
            assert name not in self.there
            self.there[name] = count
            self.made.append((name, count, replication))
        return list(partitions)

    def topics(self, names: Sequence[str]) -> list[Topic]:
        return [Topic(name=name, id="", partitions=self.there[name]) for name in names]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker({"stock": 4, "other": 1})

    @contextlib.contextmanager
    def cluster(bootstrap: str, options: Mapping[str, str]) -> Iterator[Broker]:
        assert (bootstrap, options) == (SERVER, {})
        yield found

    monkeypatch.setattr(topics, "cluster", cluster)
    monkeypatch.setattr(topics, "demand_listener", lambda _: None)
    return found


def spillway(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """Exit code, what was printed as JSON, and the rest."""
    options = ["--set", f"kafka.bootstrap_servers={SERVER}", "--set", "kafka.replication=3"]
    with pytest.raises(SystemExit) as it:
        cli.main([*options, "topics", "--json", *arguments])
    printed = capsys.readouterr()
    assert isinstance(it.value.code, int)
    return it.value.code, json.loads(printed.out), printed.err


def topic(name: str, partitions: int | None, *, created: bool = False) -> dict[str, Any]:
    exists = partitions is not None
    return {"topic": name, "partitions": partitions, "created": created, "exists": exists}


def test_missing_topics_are_told_and_not_made(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, told = spillway(capsys)
    assert code == 3
    assert found == [topic("review", None), topic("stock", 4), topic("volume", None)]
    assert f"no topic review, volume on {SERVER}: run 'spillway topics --create'" in told
    assert not broker.made


def test_missing_topics_are_made_and_no_other_is_changed(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = spillway(capsys, "--create")
    assert code == 0
    made = [topic("review", 6, created=True), topic("stock", 4), topic("volume", 6, created=True)]
    assert found == made
    assert broker.made == [("review", 6, 3), ("volume", 6, 3)]
    again = spillway(capsys, "--create")
    assert again[:2] == (0, [{**each, "created": False} for each in made])
    assert len(broker.made) == 2
    assert broker.there["other"] == 1


def produced(topic: str, **counts: int) -> Summary:
    return Summary(
        topics=[ProducedTally(topic, rows=3, value_bytes=90, **counts)], seconds=1, processes=1
    )


@pytest.mark.parametrize("topic", ["orders", "stock"])
def test_rows_that_no_query_reads_are_told(
    topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are sent: the query may come later."""
    monkeypatch.setattr("spillway.produce.replay.replay", lambda *_, **__: produced(topic))
    with pytest.raises(SystemExit) as it:
        cli.main(["produce", "--replay", "orders.jsonl"])
    assert it.value.code in (0, None)
    said = capsys.readouterr()
    told = "no stream of the query symbol reads orders: it reads review, stock, volume."
    assert (told in said.err) == (topic == "orders")
    assert "malformed" not in said.out, "a recording does not say which of its rows are"
    assert said.out.split()[:6] == ["topic", "rows", "bytes", topic, "3", "90"]


def test_rows_that_were_made_are_counted_by_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spillway.produce.run.produce", lambda *_, **__: produced("stock", late=2))
    with pytest.raises(SystemExit):
        cli.main(["produce", "sample-day"])
    said = capsys.readouterr()
    counts = ["topic", "rows", "malformed", "late", "repeated", "bytes", "stock", "3", "0", "2"]
    assert said.out.split()[:10] == counts
    assert "no stream" not in said.err


def test_a_topic_of_a_scenario_cannot_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spillway.produce.run.produce", lambda *_, **__: produced("trade"))
    with pytest.raises(SystemExit):
        cli.main(["produce", "quoted-trades"])
    said = " ".join(capsys.readouterr().err.split())
    assert "reads trade" in said
    assert "--set query=NAME" in said
    assert "--topic" not in said


def test_a_query_that_cannot_be_read_keeps_nobody_from_sending() -> None:
    says = topics.unread(["stock"], "no-such-query.toml", recorded=True)
    assert says.startswith("whether the query reads these topics cannot be said: ")
    assert "there is no such file" in says
