"""The query's topics: which exist, which are made, and that no other is touched."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spillway import cli, topics
from spillway.decode import tree_spec
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.produce import replay, run
from spillway.produce import topics as produce_topics
from spillway.produce.summary import ProducedTally, Summary
from spillway.protocol.state import fold
from spillway_schemas.journal import Topic
from spillway_schemas.query import load_query
from tests.new_warehouse import new_warehouse
from tests.protocol_entries import claim, epoch, genesis

SERVER = "kafka.example:9092"
NOWHERE = "/nowhere/warehouse"


class Broker:
    """As much of a cluster as is asked here."""

    def __init__(self, there: dict[str, int]) -> None:
        self.there, self.id = there, "c"
        self.made: list[tuple[str, int, int]] = []

    def cluster_id(self) -> str:
        return self.id

    def existing_topics(self) -> list[str]:
        return sorted(self.there)

    def create_topics(self, partitions: Mapping[str, int], *, replication: int = 1) -> list[str]:
        for name, count in partitions.items():
            assert name not in self.there
            self.there[name] = count
            self.made.append((name, count, replication))
        return list(partitions)

    def topics(self, names: Sequence[str]) -> list[Topic]:
        return [Topic(name=name, id=f"{name}-now", partitions=self.there[name]) for name in names]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker({"stock": 4, "other": 1})

    @contextlib.contextmanager
    def cluster(bootstrap: str, options: Mapping[str, str]) -> Iterator[Broker]:
        assert (bootstrap, options) == (SERVER, {})
        yield found

    for module in (topics, produce_topics):
        monkeypatch.setattr(module, "cluster", cluster)
    for module in (topics, run, replay):
        monkeypatch.setattr(module, "demand_listener", lambda _: None)
    return found


def spillway(
    capsys: pytest.CaptureFixture[str], *arguments: str, root: str | Path = NOWHERE
) -> tuple[int, Any, str]:
    """Exit code, what was printed as JSON, and the rest."""
    options = ["--set", f"kafka.bootstrap_servers={SERVER}", "--set", "kafka.replication=3"]
    options += ["--set", f"warehouse.root={root}"]
    with pytest.raises(SystemExit) as it:
        cli.main([*options, "topics", "--json", *arguments])
    printed = capsys.readouterr()
    assert isinstance(it.value.code, int)
    return it.value.code, json.loads(printed.out or "null"), printed.err


def topic(
    name: str, partitions: int | None, *, created: bool = False, problem: str = ""
) -> dict[str, Any]:
    exists = partitions is not None
    known = {"topic": name, "partitions": partitions, "created": created, "exists": exists}
    return known | {"problem": problem}


def test_missing_topics_are_told_and_not_made(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, told = spillway(capsys)
    assert code == 3
    assert found == [topic("review", None), topic("stock", 4), topic("volume", None)]
    assert f"no topic review or volume on {SERVER}: run 'spillway topics --create'" in told
    assert not broker.made


def test_missing_topics_are_made_and_no_other_is_changed(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, told = spillway(capsys, "--create")
    assert code == 0
    assert "They keep rows as long as the cluster says" in told
    made = [topic("review", 6, created=True), topic("stock", 4), topic("volume", 6, created=True)]
    assert found == made
    assert broker.made == [("review", 6, 3), ("volume", 6, 3)]
    again = spillway(capsys, "--create")
    assert again == (0, [{**each, "created": False} for each in made], "")
    assert len(broker.made) == 2
    assert broker.there["other"] == 1


def begun(root: Path, *, read: str) -> None:
    """A warehouse that knows the query's topics by other ids, and has read rows of one."""
    query = load_query("symbol")
    spec, at = tree_spec(query), "2026-01-05T14:00:00Z"
    journal = new_warehouse(root, result_schema(spec), spill=spill_schema(spec)).journal
    start = {name: [3] for name in query.topics}
    known = [Topic(name=name, id=f"{name}-then", partitions=1) for name in sorted(start)]
    journal.append(genesis(topics=known, start=start, inputs=3, written_at=at))
    journal.append(claim(1, 1, written_at=at))
    journal.append(epoch(2, 0, start | {read: [7]}, started_at=at, written_at=at))


@pytest.mark.parametrize("flags", [(), ("--create",)])
def test_topics_of_another_cluster_are_not_looked_at(
    flags: tuple[str, ...], broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That they are missing there, or have other ids, says nothing of the journal's."""
    begun(tmp_path, read="review")
    broker.id = "d"
    code, _, told = spillway(capsys, *flags, root=tmp_path)
    assert code == 3
    assert f"{SERVER} is another Kafka cluster (d) than the one" in told
    assert not broker.made


@pytest.mark.parametrize("flags", [(), ("--create",)])
def test_a_topic_that_was_read_is_not_made_anew(
    flags: tuple[str, ...], broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is any other in the same run: the stream would refuse all of it."""
    begun(tmp_path, read="review")
    code, _, told = spillway(capsys, *flags, root=tmp_path)
    assert code == 3
    says = f"no topic review on {SERVER}, and the journal of {tmp_path} has read it: one that is"
    assert says in told
    assert "brought back, or take another warehouse.root" in told
    assert "--create" not in told
    assert not broker.made


def test_a_topic_that_was_never_read_is_made(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told that the stream refuses whatever is not the topic of before."""
    begun(tmp_path, read="stock")
    code, found, told = spillway(capsys, "--create", root=tmp_path)
    assert code == 3
    assert [each[0] for each in broker.made] == ["review", "volume"]
    for each in found:
        name = each["topic"]
        ids = f"its id was {name}-then, now {name}-now"
        assert each["problem"] == f"topic {name} was deleted and created again ({ids})"
        assert f"{each['problem']}: the stream refuses it" in told


SENDS = {
    "scenario": ("produce", "sample-day", "--speed", "0"),
    "recording": ("produce", "--replay", "review.jsonl"),
}


def sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str, root: Path
) -> tuple[int, str]:
    """Exit code and what was said of a command that sends, in a folder of its own."""
    monkeypatch.chdir(root)
    Path("review.jsonl").write_text('{"symbol": "A", "ts": "2026-01-05T14:30:00Z"}\n')
    options = ["--set", f"kafka.bootstrap_servers={SERVER}", "--set", "warehouse.root=w"]
    with pytest.raises(SystemExit) as it:
        cli.main([*options, *SENDS[how]])
    assert isinstance(it.value.code, int)
    return it.value.code, " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("how", SENDS)
def test_a_topic_that_was_read_is_not_made_anew_by_who_sends(
    how: str,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun(tmp_path / "w", read="review")
    for module in (run, replay):
        monkeypatch.setattr(module, "Sender", lambda *_: pytest.fail("nothing may be sent"))
    code, told = sent(capsys, monkeypatch, how, tmp_path)
    assert code == 3
    says = f"no topic review on {SERVER}, and the journal of {tmp_path / 'w'} has read it: one that"
    assert says in told
    assert not broker.made


@pytest.mark.parametrize("read", ["", "stock"])
@pytest.mark.parametrize("how", SENDS)
def test_a_topic_that_was_never_read_is_made_by_who_sends(
    how: str,
    read: str,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if read:
        begun(tmp_path / "w", read=read)
    for module in (run, replay):
        monkeypatch.setattr(module, "Sender", lambda *_: contextlib.nullcontext(Mute()))
    code, told = sent(capsys, monkeypatch, how, tmp_path)
    assert code == 0, told
    made = {"scenario": ["review", "volume"], "recording": ["review"]}
    assert [each[0] for each in broker.made] == made[how]


class Mute:
    """A sender that sends nothing."""

    def partitions(self, _: str) -> int:
        return 4

    def send_rows(self, *_: object) -> None:
        pass

    def flush(self) -> None:
        pass


def test_a_topic_is_read_when_the_journal_has_gone_on_in_it() -> None:
    start, end = {"a": [0, 2], "b": [4]}, {"a": [0, 2, 0], "b": [5]}
    state = fold(None, genesis(start=start))
    for entry in (claim(1, 1), epoch(2, 0, end)):
        state = fold(state, entry)
    assert [topics.was_read(state, name) for name in ("a", "b", "c")] == [False, True, False]
    dropped = state.genesis.model_copy(update={"start": {"b": [5]}})
    changed = replace(state, before=(state.genesis,), genesis=dropped)
    assert topics.was_read(changed, "b"), "by the query before"


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
