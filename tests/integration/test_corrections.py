"""Corrections on a real broker and a real Spark: of a file, of a topic, killed, proved."""

from __future__ import annotations

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kafka import KafkaProducer

from spillway.cleanup.deferred import TopicSource
from spillway.corrections.job import Corrected, CorrectionRequest, run_correction
from spillway.corrections.rows import from_file
from spillway.corrections.topics import from_topic
from spillway.decode import compile_query
from spillway.engine.wire.datafile import write_data_file
from spillway.kafka.client import KafkaCluster
from spillway.stream.messages import MessageSource
from spillway.tables import SessionEvent, Warehouse
from spillway.verify.proof import NotCleaned, verify
from spillway_schemas.filenames import correct_name
from spillway_schemas.query import load_query
from tests.closed_day import AT_MS, Late, correction_of, make_closed_day
from tests.integration.test_verify import (
    DAY,
    STREAMS,
    HandMadeDay,
    day,  # noqa: F401 - a fixture
    proved,
    spark,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.server

Place = tuple[int, int]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def late(stream: str, symbol: str, k: int) -> dict[str, Any]:
    return HandMadeDay._message(stream, symbol, k)


def found_in(w: Warehouse) -> Counter[tuple[Any, ...]]:
    """The coordinates of all results, and what they say of the rows."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for file in w.files("results"):
        for row in pq.read_table(w.folder("results").path(file.path)).to_pylist():
            places = [(row[f"{s}_partition"], row[f"{s}_offset"]) for s in STREAMS]
            payload = (row["stock_price"], row["volume_shares"], row["review_reviewer"])
            rows[(row["symbol"], *places, *payload)] += 1
    return rows


def joined(held: dict[str, list[tuple[Place, dict[str, Any]]]]) -> Counter[tuple[Any, ...]]:
    """The reference: nested loops."""
    return Counter(
        (
            combination[0][1]["symbol"],
            *(place for place, _ in combination),
            *(
                row[n]
                for (_, row), n in zip(combination, ("price", "shares", "reviewer"), strict=True)
            ),
        )
        for combination in itertools.product(*(held[s] for s in STREAMS))
        if len({row["symbol"] for _, row in combination}) == 1
    )


def test_late_rows_of_windows_are_proved(
    spark: Any,  # noqa: F811
    broker: str,
    cluster: KafkaCluster,
    topics: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    """Rows of a closed session have no watermark to be late by, for the join and for the proof."""
    text = load_query("symbol_window")
    names = topics(*STREAMS, partitions=2)
    streams = {s: text.streams[s].model_copy(update={"topic": names[s]}) for s in STREAMS}
    query = text.model_copy(update={"streams": streams})
    rows = [Late(s, n % 3, 5 * n) for n in range(12) for s in STREAMS]
    ids = {topic.name: topic.id for topic in cluster.topics(list(names.values()))}
    closed = make_closed_day(
        str(tmp_path / "w"), rows, query=query, ids=ids, cluster_id=cluster.cluster_id()
    )
    producer = KafkaProducer(bootstrap_servers=broker, acks="all")
    for topic, parts in closed.values.items():
        for partition, values in enumerate(parts):
            for value in values:
                producer.send(topic, value, b"k", partition=partition, timestamp_ms=AT_MS)
    producer.flush()
    producer.close()
    late_rows = [Late("stock", 1, 7), Late("review", 1, 200), Late("volume", 1, 190)]
    given = correction_of(late_rows, 1, query)
    compiled = compile_query(query)
    done = run_correction(
        lambda: spark,
        closed.warehouse,
        compiled.spec,
        DAY,
        TopicSource(compiled.streams, MessageSource(broker, {})),
        CorrectionRequest(lambda _: given, "late", "ada"),
        fingerprint=query.fingerprint,
    )
    assert done.revision is not None
    expected = closed.enlarged({1: given})
    assert Counter(result for _, result in closed.results().elements()) == expected
    assert done.revision.results == (expected - closed.enlarged({})).total() > 0
    report = verify(lambda: spark, closed.warehouse, query, DAY, bootstrap=broker)
    assert report.details["problems"] == []
    assert (report.complete, report.expected) == (True, expected.total())


def test_late_rows_are_joined_with_the_day_and_proved(
    spark: Any,  # noqa: F811
    day: HandMadeDay,  # noqa: F811
    topics: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    w = day.warehouse(day.results())
    w.sessions.append(SessionEvent(session=DAY, event="verified", complete=True))
    compiled = compile_query(day.query)
    source = TopicSource(compiled.streams, MessageSource(day.broker, {}))
    held = {s: [((p, o), row) for p, o, row in day.rows[s]] for s in STREAMS}

    def correct(read: Any, **more: Any) -> Corrected:
        wanted = None if read is None else CorrectionRequest(read, "the feed was down", "ada")
        return run_correction(
            lambda: spark,
            Warehouse(str(w.place.path()), fsync=False),
            compiled.spec,
            DAY,
            source,
            wanted,
            fingerprint=day.query.fingerprint,
            **more,
        )

    # A file of one stream's messages, with a line that is empty.
    path = lines(tmp_path / "stock.jsonl", [late("stock", "S1", 500), late("stock", "new", 501)])
    path.write_text("\n" + path.read_text())
    first = from_file(path, None, compiled.streams)
    held["stock"] += [
        ((-1, 2), late("stock", "S1", 500)),
        ((-1, 3), late("stock", "new", 501)),
    ]
    before = found_in(w)
    planned = correct(lambda _: first, plan=True)
    assert found_in(w) == before
    done = correct(lambda _: first)
    assert done.revision is not None
    assert found_in(w) == joined(held)
    assert planned.revision is not None
    assert planned.revision.results == done.revision.results == (joined(held) - before).total() > 0
    assert correct(lambda _: first).already

    # A topic; what it gains later is the next revision, and meets the rows of the ones before.
    (name,) = topics("volume-late").values()

    def send(*rows: dict[str, Any]) -> None:
        producer = KafkaProducer(bootstrap_servers=day.broker, acks="all")
        for row in rows:
            producer.send(name, json.dumps(row).encode(), partition=0)
        producer.flush()
        producer.close()

    read = partial(from_topic, source, name, "volume", print)
    send(late("volume", "new", 502), late("volume", "S2", 503))
    held["volume"] += [
        ((-2, 1), late("volume", "new", 502)),
        ((-2, 2), late("volume", "S2", 503)),
    ]
    assert correct(read).revision is not None
    assert correct(read).revision is None
    send(late("volume", "new", 504))
    held["volume"].append(((-3, 1), late("volume", "new", 504)))
    assert correct(read).revision is not None

    # Records of several streams; the process dies before their results are in.
    rows = [
        {"topic": day.topics["review"], "value": late("review", "new", 505)},
        {"topic": day.topics["stock"], "value": late("stock", "S1", 506)},
    ]
    fourth = from_file(lines(tmp_path / "rows.jsonl", rows), None, compiled.streams)
    held["review"].append(((-4, 1), late("review", "new", 505)))
    held["stock"].append(((-4, 2), late("stock", "S1", 506)))

    class Dying(Warehouse):
        def apply_correction(self, *_: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_correction(
            lambda: spark,
            Dying(str(w.place.path()), fsync=False),
            compiled.spec,
            DAY,
            source,
            CorrectionRequest(lambda _: fourth, "", "ada"),
            fingerprint=day.query.fingerprint,
        )
    with pytest.raises(NotCleaned, match=f"spillway correct --session {DAY}"):
        proved(spark, day, w)
    finished = correct(None)
    assert [each.revision for each in finished.finished] == [4]
    assert found_in(w) == joined(held)

    report = proved(spark, day, w)
    late_results = sum(row["phase"] == "cleanup" for row in day.results())
    assert (report.complete, report.expected) == (True, joined(held).total())
    assert report.cleanup == late_results
    added = joined(held).total() - before.total()
    assert report.details["corrections"] == {"revisions": 4, "rows": 7, "results": added}
    assert w.sessions.history().outcomes()[DAY].complete

    # What a correction added is proved as everything else: here a result is there twice.
    table = w.table("results")
    table.refresh()
    doubled = next(f for f in table.files() if f.path.split("/")[-1].startswith("correct-"))
    with table.place.open(doubled.path) as file:
        again = pq.read_table(file).slice(0, 1)
    attempt = uuid.uuid4().hex[:12]
    record = write_data_file(
        table.place, "results", correct_name(DAY, 9, attempt, 0), again.schema, [again],
        {"session_date": DAY},
    )  # fmt: skip
    assert record is not None
    table.commit([record], "somebody", 1)
    report = proved(spark, day, w)
    assert (report.complete, report.doubled, report.missing) == (False, 1, 0)
