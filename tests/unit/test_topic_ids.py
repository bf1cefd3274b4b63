"""A topic that is deleted, and one that is made anew: by Kafka's ids, not by names."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from spillway.cleanup import job as cleanup
from spillway.cleanup.deferred import TopicSource
from spillway.corrections.rows import CorrectionRefused
from spillway.decode.chunks import Chunk
from spillway.kafka import reading
from spillway.kafka.client import KafkaUnavailable, TopicMissing, TopicProblem
from spillway.kafka.reading import TopicDeleted, TopicRange, TopicReader
from spillway.protocol.failing import JobFailed, give_up
from spillway.protocol.recovery import Restore
from spillway.stream import failures, messages
from spillway.stream.failures import first_lines
from spillway.stream.messages import MessageSource, read_messages
from spillway_schemas.journal import Topic
from spillway_schemas.settings import Settings
from tests.closed_day import DAY, STREAMS, ClosedDay, Late, correction_of, make_closed_day
from tests.unit.test_driver_scenes import plan

OLD, NEW = "64df43ef", "8e5c60d0"
Told = Mapping[str, str | None] | None


class Brokers:
    """What Kafka says of topics, answer by answer; the last one for ever. None: no answer."""

    metadata_refresh_in_progress = False
    unauthorized_topics = frozenset({"secret"})

    def __init__(self, *answers: Told) -> None:
        self.answers = list(answers)
        self.asked = 0

    def refresh(self) -> None:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if answer is None:
            raise KafkaTimeoutError("no answer")
        self.now = answer

    def topic_id(self, name: str) -> str | None:
        return self.now.get(name)

    def partitions_for_topic(self, name: str) -> set[int] | None:
        return {0} if name in self.now else None


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AGAIN_S", 0.0)


def reader(*answers: Told) -> tuple[TopicReader, Brokers]:
    made: Any = object.__new__(TopicReader)
    brokers = Brokers(*answers)
    made._consumer = SimpleNamespace(_cluster=brokers)
    made._bootstrap, made._options, made._silent_s = "h:1", {}, 0.2
    made._refresh = brokers.refresh
    return made, brokers


@pytest.mark.parametrize(
    ("answers", "asked", "says"),
    [
        ([{"a": OLD}], 1, ""),
        ([{"a": None}], 1, ""),  # a broker that tells no ids
        ([{"a": OLD, "b": NEW}], 1, ""),  # `b` is not asked for
        ([{}, {"a": OLD}], 2, ""),  # one that has just started
        ([{}, {}], 2, "topic 'a' at h:1 does not exist any more"),
        ([{"a": NEW}], 2, f"topic 'a' was deleted and created again .its id was {OLD}, now {NEW}"),
        ([{}, {"a": NEW}], 2, "deleted and created again"),
        ([None, None, {"a": OLD}], 3, ""),
    ],
)
def test_a_topic_counts_as_deleted_when_it_was_looked_for_twice(
    answers: list[Told], asked: int, says: str
) -> None:
    given, brokers = reader(*answers)
    expected: Any = pytest.raises(TopicDeleted, match=says) if says else contextlib.nullcontext()
    with expected:
        given._assure_the_same({"a": OLD})
    assert brokers.asked == asked


def test_a_topic_that_may_not_be_seen_is_not_deleted() -> None:
    given, _ = reader({})
    given._assure_the_same({"secret": OLD})


def test_brokers_that_do_not_say_are_away() -> None:
    given, _ = reader(None)
    with pytest.raises(KafkaUnavailable, match="does not answer"):
        given._assure_the_same({"a": OLD})


def test_who_reads_messages_asks_whose_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each topic by the id that the journal has."""
    asked: list[Mapping[str, str]] = []

    class Reader:
        def __init__(self, *_: object) -> None: ...

        def read(self, _: Sequence[TopicRange], ids: Mapping[str, str] | None = None) -> Any:
            asked.append(ids or {})
            return iter(())

    monkeypatch.setattr(reading, "TopicReader", Reader)
    monkeypatch.setattr(messages, "_readers", {})
    assert not list(read_messages(MessageSource("h:1", {}, {"a": OLD}), [TopicRange("a", 0, 0, 1)]))
    assert asked == [{"a": OLD}]


def test_whoever_reads_a_closed_day_again_asks_whose_rows_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correction and proof; the ids are those that the journal has."""
    asked: list[Mapping[str, str]] = []

    class Day(ClosedDay):
        def chunks(self, source: Any, wanted: Iterable[TopicRange]) -> Iterator[Chunk]:
            asked.append(source.ids)
            return super().chunks(source, wanted)

        def _parts_added(self, spark: Any, source: TopicSource, *more: Any) -> Any:
            asked.append(source.messages.ids)
            return self.added(source)

        def added(self, source: TopicSource) -> Any:
            raise RuntimeError("Java's trace")

    rows = [Late(stream, 1) for stream in STREAMS]
    made = make_closed_day(str(tmp_path / "w"), rows, ids={"stock": OLD})
    day = Day(**vars(made))
    ids = {topic: day.ids.get(topic, topic) for topic in day.end}
    assert day.prove().complete
    with pytest.raises(RuntimeError, match="Java's trace"):
        day.correct(correction_of([Late("stock", 1)], 1, day.query))
    assert len(asked) > 1
    assert [each for each in asked if each != ids] == []

    def gone(_: Day, source: TopicSource) -> Any:
        day.lost = "the topic 'stock' was deleted and created again"
        raise RuntimeError("Java's trace")

    monkeypatch.setattr(Day, "added", gone)
    with pytest.raises(CorrectionRefused, match="'stock' was deleted and created again"):
        day.correct(correction_of([Late("stock", 1)], 1, day.query))


def test_a_cleanup_that_reads_lost_rows_again_asks_whose_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Mapping[str, str]] = []

    def read(_: object, __: object, source: TopicSource, *more: object) -> list[object]:
        asked.append(source.messages.ids)
        return []

    topics = [Topic(name="a", id=OLD, partitions=1)]
    genesis = SimpleNamespace(topics=topics, event_time=None)
    work: Any = SimpleNamespace(sealed=SimpleNamespace(session=DAY), genesis=genesis)
    spec: Any = None
    warehouse: Any = SimpleNamespace(
        deferred_applied=lambda _: -1, folder=lambda _: None, apply_deferred=lambda *_: None
    )
    monkeypatch.setattr(cleanup, "read_deferred", read)
    again = Restore(frozenset(), {}, {}, (), ())
    source = TopicSource((), MessageSource("h:1", {}))
    cleanup.commit_deferred(lambda: None, warehouse, spec, work, source, again, lambda _: None)
    assert asked == [{"a": OLD}]


def test_a_process_hands_on_that_a_topic_was_deleted() -> None:
    told = TopicDeleted("topic x does not exist any more")
    assert str(pickle.loads(pickle.dumps(told))) == str(told)


def test_an_epoch_whose_topic_was_deleted_is_not_tried_again() -> None:
    text = (
        "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        f"spillway.kafka.reading.TopicDeleted: {TopicDeleted('topic x does not exist any more')}\n"
        "\tat org.apache.spark\n"
    )
    detail = first_lines(RuntimeError(text), {})
    assert detail == str(TopicDeleted("topic x does not exist any more"))
    told = give_up(plan(), 1, [JobFailed(detail, "deleted")])
    assert told is not None
    assert "`A topic was deleted`" in told
    assert "accept-loss" not in told
    assert "Nothing from it was committed" in told


UNKNOWN = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: not hosted here"


@pytest.mark.parametrize(
    ("failure", "now", "says"),
    [
        (UNKNOWN, TopicMissing("no topic 'a' on h:1"), "no topic 'a' on h:1"),
        (UNKNOWN, [Topic(name="a", id=NEW, partitions=1)], "was deleted and created again"),
        ("[KAFKA_DATA_LOSS] lost", [Topic(name="a", id=NEW, partitions=1)], "created again"),
        ("[KAFKA_DATA_LOSS] lost", [Topic(name="a", id=OLD, partitions=1)], ""),
        (UNKNOWN, [Topic(name="a", id=OLD, partitions=1)], ""),
        (UNKNOWN, KafkaUnavailable("nobody answers"), ""),
        ("java.net.ConnectException: refused", TopicMissing("no topic 'a'"), ""),
    ],
)
def test_a_failed_query_is_told_from_a_deleted_topic_by_asking(
    monkeypatch: pytest.MonkeyPatch, failure: str, now: Any, says: str
) -> None:
    class View:
        def topics(self, _: Sequence[str]) -> list[Topic]:
            if isinstance(now, TopicProblem):
                raise now
            found: list[Topic] = now
            return found

    @contextlib.contextmanager
    def cluster(*_: object) -> Iterator[View]:
        if isinstance(now, KafkaUnavailable):
            raise now
        yield View()

    monkeypatch.setattr(failures, "cluster", cluster)
    known = [Topic(name="a", id=OLD, partitions=1)]
    found = failures.deleted(RuntimeError(failure), Settings().kafka, known)
    assert (says in str(found)) if says else found is None
