"""The proof on a real broker and a real Spark, over results joined by hand.

No stream and no engine: messages are produced, their results made by nested loops, and the
journal says what a stream would have said. Then the results are tampered with.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from spillway.decode import compile_streams, partition_digest, tree_spec, value_digest
from spillway.engine.join.results import file_schema, result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.engine.wire.datafile import write_data_file
from spillway.kafka.client import KafkaCluster
from spillway.protocol.state import AnotherQuery
from spillway.storage import LocalFolder
from spillway.tables import SessionEvent, Warehouse
from spillway.verify.progress import VerifyProgress
from spillway.verify.proof import InputGone, NotSealed, VerifyReport, verify
from spillway.verify.rows import table_rows
from spillway.verify.tasks import ResultsDamaged, TableFiles
from spillway_schemas.filenames import cleanup_name, data_name
from spillway_schemas.journal import (
    Claim,
    Epoch,
    Genesis,
    PartitionCount,
    Prefix,
    Sealed,
    SealRequest,
)
from spillway_schemas.query import Query, load_query
from tests.new_warehouse import new_warehouse

pytestmark = pytest.mark.server

DAY = "2026-01-05"
TIME = "2026-01-05T21:00:00Z"
AT = datetime(2026, 1, 5, 21, tzinfo=UTC)
STREAMS = ("stock", "volume", "review")
Result = dict[str, Any]


@pytest.fixture(scope="module")
def spark(spark_env: dict[str, str]) -> Iterator[Any]:
    from spillway.stream.session import spark_session

    session = spark_session("local[2]", "verify-test")
    yield session
    session.stop()


class HandMadeDay:
    """A day on the broker, the results that it should have, and a warehouse to put them into."""

    def __init__(
        self, broker: str, cluster: KafkaCluster, topics: dict[str, str], root: Path
    ) -> None:
        self.broker = broker
        self.cluster = cluster
        self.topics = topics
        self.root = root
        text = load_query("symbol")
        streams = {
            name: stream.model_copy(update={"topic": topics[name]})
            for name, stream in text.streams.items()
        }
        self.query: Query = text.model_copy(update={"streams": streams})
        self.rows: dict[str, list[tuple[int, int, dict[str, Any]]]] = {}
        self.rejected: list[tuple[str, int, int, bytes | None]] = []
        self.read: list[PartitionCount] = []
        """What a stream would have counted."""
        self._produce()
        names = sorted(topics.values())
        self.start = {name: [0, 0] for name in names}
        self.end = cluster.end_offsets(names)
        self.cluster_id = cluster.cluster_id()
        self._after_the_seal()

    def _produce(self) -> None:
        bad = [b"{", None, b'{"symbol":"A"}', b'{"symbol":null,"ts":"2026-01-05T15:00:00Z"}']
        producer = KafkaProducer(bootstrap_servers=self.broker, acks="all")
        for s, stream in enumerate(STREAMS):
            self.rows[stream] = []
            offsets = [0, 0]
            values: list[list[bytes | None]] = [[], []]
            for k in range(60):
                partition = k % 2
                value: bytes | None
                if k % 15 == 3:
                    value = bad[(k // 15) % len(bad)]
                    self.rejected.append(
                        (self.topics[stream], partition, offsets[partition], value)
                    )
                else:
                    message = self._message(stream, f"S{(k * (s + 3)) % 7}", k)
                    value = json.dumps(message).encode()
                    self.rows[stream].append((partition, offsets[partition], message))
                producer.send(self.topics[stream], key=b"k", value=value, partition=partition)
                offsets[partition] += 1
                values[partition].append(value)
            self.read += [self._count(stream, p, some) for p, some in enumerate(values)]
        producer.flush()
        producer.close()

    def _count(self, stream: str, partition: int, values: list[bytes | None]) -> PartitionCount:
        topic, n = self.topics[stream], len(values)
        rejected = sum((topic, partition) == each[:2] for each in self.rejected)
        digest = partition_digest(value_digest(pa.array(values, pa.binary())), np.arange(n))
        return PartitionCount(
            topic=topic, partition=partition, rows=n, rejected=rejected, filtered=0, digest=digest
        )

    def _after_the_seal(self) -> None:
        """Rows of the next session: they are not this one's business."""
        producer = KafkaProducer(bootstrap_servers=self.broker, acks="all")
        for stream in STREAMS:
            value = json.dumps(self._message(stream, "S1", 99)).encode()
            producer.send(self.topics[stream], value=value, partition=0)
        producer.flush()
        producer.close()

    @staticmethod
    def _message(stream: str, symbol: str, k: int) -> dict[str, Any]:
        base: dict[str, Any] = {"symbol": symbol, "ts": f"2026-01-05T15:00:{k % 60:02}.25Z"}
        match stream:
            case "stock":
                return base | {"price": k / 3} | ({"currency": "USD"} if k % 2 else {})
            case "volume":
                return base | {"shares": 10 * k}
            case _:
                return (
                    base
                    | {"reviewer": f"r{k}", "rating": 1 + k % 5}
                    | ({"text": "é"} if k % 3 else {})
                )

    def results(self) -> list[Result]:
        """The brute-force join. Symbols S0 to S2 count as found by cleanup."""
        found = []
        payload = {plan.name: plan.payload.names for plan in compile_streams(self.query)}
        for combination in itertools.product(*(self.rows[s] for s in STREAMS)):
            symbols = {message["symbol"] for _, _, message in combination}
            if len(symbols) > 1:
                continue
            [symbol] = symbols
            row: Result = {"symbol": symbol}
            for stream, (partition, offset, message) in zip(STREAMS, combination, strict=True):
                for name in payload[stream]:
                    value = message.get(name)
                    row[f"{stream}_{name}"] = (
                        datetime.fromisoformat(value) if name == "ts" else value
                    )
                row[f"{stream}_partition"], row[f"{stream}_offset"] = partition, offset
            late = symbol in ("S0", "S1", "S2")
            found.append(
                row | {"epoch": 0, "phase": "cleanup" if late else "run-time", "committed_at": AT}
            )
        return found

    def warehouse(self, results: list[Result], *, rejected: int | None = None) -> Warehouse:
        """A warehouse whose results table holds just these rows."""
        spec = tree_spec(self.query)
        root = self.root / uuid.uuid4().hex
        w = new_warehouse(root, result_schema(spec), spill=spill_schema(spec))
        ids = self.cluster.topics(sorted(self.topics.values()))
        w.journal.append(
            Genesis(
                warehouse_id="w",
                cluster_id=self.cluster_id,
                topics=ids,
                query=self.query.fingerprint,
                session=DAY,
                start=self.start,
                start_rule="earliest",
                inputs=3,
                groups=[(Prefix(0, 0), 0)],
                written_at=TIME,
            )
        )
        w.journal.append(Claim(n=1, term=1, driver="d", written_at=TIME))
        run_time = [row for row in results if row["phase"] == "run-time"]
        cleanup = [row for row in results if row["phase"] == "cleanup"]
        partition = {"session_date": DAY}
        schema = file_schema(spec)

        def write(name: str, rows: list[Result]) -> list[Any]:
            table = pa.Table.from_pylist(rows, schema=schema)
            record = write_data_file(
                w.folder("results"), "results", name, schema, [table], partition
            )
            return [record] if record else []

        files = write(data_name(0, "aaaaaaaaaaaa", 0, 0), run_time)
        quarantine = w.table("quarantine").definition.file_schema
        bad = [
            {
                "topic": topic,
                "partition": p,
                "offset": o,
                "reason": "bad",
                "value": value,
                "kafka_timestamp": AT,
                "epoch": 0,
                "written_at": AT,
            }
            for topic, p, o, value in self.rejected[:rejected]
        ]
        record = write_data_file(
            w.folder("quarantine"),
            "quarantine",
            data_name(0, "aaaaaaaaaaaa", 0, 1),
            quarantine,
            [pa.Table.from_pylist(bad, schema=quarantine)],
            partition,
        )
        assert record is not None
        sealed = Sealed(
            session=DAY,
            epoch=0,
            start=self.start,
            end=self.end,
            ranges=[Prefix(0, 0)],
            results=len(run_time),
            spilled_rows=0,
            generations=2,
        )
        w.journal.append(
            Epoch(
                n=2,
                term=1,
                epoch=0,
                session="2026-01-06",
                end=self.end,
                manifests={0: "m"},
                seal=SealRequest(session=DAY, end=self.end, next_session="2026-01-06", command="s"),
                files=[*files, record],
                cuts=[],
                read=self.read,
                sealed=sealed,
                results={DAY: len(run_time)},
                slots=[],
                started_at=TIME,
                written_at=TIME,
            )
        )
        if files:
            w.apply("results", 0, files)
        w.apply("quarantine", 0, [record])
        w.apply_cleanup(DAY, {0: write(cleanup_name(DAY, 0, "aaaaaaaaaaaa", 0), cleanup)})
        w.sessions.append(SessionEvent(session=DAY, event="cleaned", cleanup=len(cleanup)))
        return w


@pytest.fixture(scope="module")
def day(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandMadeDay]:
    view = KafkaCluster(broker)
    topics = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in STREAMS}
    view.create_topics(dict.fromkeys(topics.values(), 2))
    try:
        yield HandMadeDay(broker, view, topics, tmp_path_factory.mktemp("verify"))
    finally:
        left = set(topics.values()) & set(view.existing_topics())
        view.delete_topics(left)
        view.close()


def proved(spark: Any, day: HandMadeDay, w: Warehouse, **more: Any) -> VerifyReport:
    return verify(lambda: spark, w, day.query, DAY, bootstrap=day.broker, **more)


def coordinates(row: Result) -> dict[str, dict[str, int]]:
    return {s: {"partition": row[f"{s}_partition"], "offset": row[f"{s}_offset"]} for s in STREAMS}


def test_a_complete_day_is_proved_complete(spark: Any, day: HandMadeDay) -> None:
    results = day.results()
    w = day.warehouse(results)
    told: list[str] = []
    with VerifyProgress(DAY, told.append, again_s=0.05) as progress:
        report = proved(spark, day, w, progress=progress)
    late = sum(row["phase"] == "cleanup" for row in results)
    assert len(results) > 1000
    assert report.details["problems"] == []
    assert report.to_dict() == {
        "session": DAY,
        "expected": len(results),
        "run_time": len(results) - late,
        "cleanup": late,
        "missing": 0,
        "doubled": 0,
        "complete": True,
        "details": report.details,
    }
    assert report.details["rejected"] == report.details["quarantined"] == len(day.rejected)
    assert report.details["keys"] == 7
    [*_, event] = w.sessions.read()
    assert (event.event, event.complete, event.expected) == ("verified", True, len(results))
    assert w.check() == []
    steps = [line for line in told if not line.endswith(" s")]
    rows = sum(map(sum, day.end.values())) - sum(map(sum, day.start.values()))
    assert steps == [
        f"verify {DAY}: asking Kafka whether it still has the input",
        f"verify {DAY}: reading {rows:,} input rows and the results",
    ]


class Elsewhere(LocalFolder):
    """A folder that Spark cannot reach, as one in an object store."""

    @property
    def library_options(self) -> Any:
        return {}


def test_workers_read_what_spark_reads(spark: Any, day: HandMadeDay) -> None:
    w = day.warehouse(day.results())
    for name in ("results", "quarantine"):
        schema = w.table(name).definition.file_schema
        paths = [file.path for file in w.files(name)]
        found = [
            table_rows(spark, TableFiles(place, schema, paths)).toArrow()
            for place in (w.folder(name), Elsewhere(w.folder(name).path()))
        ]
        assert found[0].schema == found[1].schema
        assert len(found[0]) > 5
        one, other = (Counter(map(repr, rows.to_pylist())) for rows in found)
        assert one == other


def test_exhaustive_agrees(spark: Any, day: HandMadeDay) -> None:
    report = proved(spark, day, day.warehouse(day.results()), exhaustive=True, record=False)
    assert (report.complete, report.missing, report.doubled) == (True, 0, 0)


def test_every_kind_of_tampering_is_found(spark: Any, day: HandMadeDay) -> None:
    """Each symbol suffers another kind; the keys are judged one by one."""
    results = day.results()
    of: dict[str, list[Result]] = {}
    for row in results:
        of.setdefault(row["symbol"], []).append(row)
    victims = {symbol: of[symbol][0] for symbol in of}
    seconds = {symbol: of[symbol][1] for symbol in of}

    def altered(victim: str, **change: Any) -> list[Result]:
        assert all(victims[victim][name] != value for name, value in change.items())
        return [victims[victim] | change, *of[victim][1:]]

    tampered = {
        "S0": of["S0"][1:],  # one deleted
        "S1": [*of["S1"], victims["S1"]],  # one doubled
        "S2": altered("S2", volume_shares=-1),
        "S3": altered("S3", stock_offset=10**6),
        "S4": altered("S4", review_text=None if victims["S4"]["review_text"] else "x"),
        "S5": [seconds["S5"], *of["S5"][1:]],  # one in place of another: the count stays
        "S6": altered("S6", symbol="none"),
    }
    report = proved(spark, day, day.warehouse([r for rows in tampered.values() for r in rows]))
    assert not report.complete
    assert report.expected == len(results)
    assert report.details["failing_keys"] == 8

    def of_row(row: Result, expected: int, found: int, symbol: str = "") -> str:
        key = {"symbol": symbol or row["symbol"]}
        return json.dumps([key, coordinates(row), expected, found], sort_keys=True)

    wanted = Counter(
        [
            of_row(victims["S0"], 1, 0),
            of_row(victims["S1"], 1, 2),
            *(of_row(victims["S2"], e, f) for e, f in ((1, 0), (0, 1))),
            of_row(victims["S3"], 1, 0),
            of_row(victims["S3"] | {"stock_offset": 10**6}, 0, 1),
            *(of_row(victims["S4"], e, f) for e, f in ((1, 0), (0, 1))),
            of_row(victims["S5"], 1, 0),
            of_row(seconds["S5"], 1, 2),
            of_row(victims["S6"], 1, 0),
            of_row(victims["S6"], 0, 1, symbol="none"),
        ]
    )
    got = Counter(
        json.dumps([d["key"], d["coordinates"], d["expected"], d["found"]], sort_keys=True)
        for d in report.details["differences"]
    )
    assert got == wanted
    assert (report.missing, report.doubled) == (6, 6)


def test_a_generation_that_cleanup_left_out_is_found(spark: Any, day: HandMadeDay) -> None:
    results = day.results()
    left = [r for r in results if not (r["phase"] == "cleanup" and r["stock_partition"] == 1)]
    lost = len(results) - len(left)
    assert lost > 100
    report = proved(spark, day, day.warehouse(left), examples=5)
    assert (report.complete, report.missing, report.doubled) == (False, lost, 0)
    assert report.details["failing_keys"] <= 3
    assert len(report.details["differences"]) == 5
    assert all(
        d["coordinates"]["stock"]["partition"] == 1 and d["found"] == 0
        for d in report.details["differences"]
    )


def test_input_that_is_in_neither_place_is_found(spark: Any, day: HandMadeDay) -> None:
    w = day.warehouse([], rejected=-1)  # and no results at all
    report = proved(spark, day, w, record=False)
    assert not report.complete
    assert report.missing == report.expected == len(day.results())
    assert "quarantine" in report.details["problems"][0]


def test_a_session_that_is_not_sealed_is_refused(spark: Any, day: HandMadeDay) -> None:
    w = day.warehouse(day.results())
    with pytest.raises(NotSealed, match="2026-01-06 is not sealed"):
        verify(lambda: spark, w, day.query, "2026-01-06", bootstrap=day.broker)


def test_another_query_is_refused(spark: Any, day: HandMadeDay) -> None:
    w = day.warehouse([])
    with pytest.raises(AnotherQuery, match="another query"):
        verify(lambda: spark, w, load_query("symbol_minute"), DAY, bootstrap=day.broker)


def test_a_damaged_file_of_results_is_named(spark: Any, day: HandMadeDay) -> None:
    w = day.warehouse(day.results())
    (file, *_) = w.files("results")
    path = Path(w.folder("results").path(file.path))
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(ResultsDamaged, match=rf"{re.escape(path.name)} is not what was written"):
        proved(spark, day, w)
    assert [e.event for e in w.sessions.read()] == ["cleaned"]


def test_input_that_kafka_lost_is_not_guessed(
    spark: Any, broker: str, cluster: KafkaCluster, topics: Any, tmp_path: Path
) -> None:
    made = topics(*STREAMS, partitions=2)
    day = HandMadeDay(broker, cluster, made, tmp_path)
    w = day.warehouse(day.results())
    with KafkaAdminClient(bootstrap_servers=broker) as admin:
        admin.delete_records({TopicPartition(made["stock"], 1): 3})
    with pytest.raises(InputGone, match=r"partition 1 from offset 3 on.*begins at 0"):
        proved(spark, day, w)
    cluster.delete_topics([made["volume"]])
    with pytest.raises(InputGone, match="is gone"):
        proved(spark, day, w)
    cluster.create_topics({made["volume"]: 2})
    with pytest.raises(InputGone, match="created again"):
        proved(spark, day, w)
    assert [e.event for e in w.sessions.read()] == ["cleaned"]
