"""Producing for real: what is in the topics is what the scenario or the recording says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from spillway import mended
from spillway.cli import main
from spillway.kafka.client import KafkaCluster, TopicProblem
from spillway.produce.generate import sources
from spillway.produce.keys import partitions_of
from spillway.produce.replay import replay
from spillway.produce.run import ProduceError, produce
from spillway.produce.send import Sender
from spillway.produce.summary import ProduceProgress
from spillway_schemas.scenario import Scenario
from tests.scenarios import parse_scenario

pytestmark = pytest.mark.server

TEXT = """
seed = 4
{volume}
start = 2026-01-05T14:30:00Z
partitions = 3
[keys]
count = 40
[malformed]
not-json = 0.01
tombstone = 0.01
bad-utf8 = 0.01
[repeated]
share = 0.02
[streams.stock]
kind = "stock"
topic = "{stock}"
arrival = "poisson"
[streams.volume]
kind = "volume"
topic = "{volume_topic}"
"""


def scenario_for(names: dict[str, str], volume: str = "rows = 3_000\nduration_s = 60") -> Scenario:
    return parse_scenario(
        TEXT.format(volume=volume, stock=names["stock"], volume_topic=names["volume"])
    )


def read(bootstrap: str, cluster: KafkaCluster, topic: str) -> list[list[tuple]]:
    """Every record of a topic by partition: key, value, timestamp."""
    ends = cluster.end_offsets([topic])[topic]
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=20_000_000,
        fetch_max_bytes=50_000_000,
    )
    places = [TopicPartition(topic, p) for p in range(len(ends))]
    consumer.assign(places)
    consumer.seek_to_beginning()
    found: list[list[tuple]] = [[] for _ in ends]
    deadline = time.monotonic() + 30
    while any(len(f) < e for f, e in zip(found, ends, strict=True)):
        assert time.monotonic() < deadline
        for place, records in consumer.poll(timeout_ms=200).items():
            found[place.partition] += [(r.key, r.value, r.timestamp) for r in records]
    consumer.close()
    return found


def wanted(scenario: Scenario, stream: int, partitions: int) -> list[list[tuple]]:
    source = sources(scenario)[stream]
    found: list[list[tuple]] = [[] for _ in range(partitions)]
    for plan in source.plan:
        chunk = source.chunk(plan.number)
        keys = source.domain.symbols.take(pa.array(chunk.keys))
        places = partitions_of(keys, partitions)
        for key, value, place in zip(
            keys.to_pylist(), chunk.values.to_pylist(), places, strict=True
        ):
            found[place].append((key.encode(), value))
    return found


@pytest.mark.parametrize("processes", [1, 2])
def test_the_topics_hold_the_scenario_in_order(cluster, topics, broker, processes):
    names = topics("stock", "volume", partitions=3)
    scenario = scenario_for(names)
    seen: list[ProduceProgress] = []
    before = int(time.time() * 1000)
    summary = produce(scenario, broker, processes=processes, progress=seen.append)
    assert summary.processes == processes
    assert [t.rows for t in summary.topics] == [3000, 3000]
    assert seen[-1].rows == seen[-1].total == 6000
    for stream, topic in enumerate(summary.topics):
        got = read(broker, cluster, topic.topic)
        assert [[r[:2] for r in rows] for rows in got] == wanted(scenario, stream, 3)
        assert all(before - 1 <= r[2] <= time.time() * 1000 for rows in got for r in rows)
        values = [value for rows in got for _, value, _ in rows]
        assert topic.malformed["tombstone"] == values.count(None) > 0
        assert topic.value_bytes == sum(len(v) for v in values if v is not None)


def test_event_time_and_topics_that_do_not_exist_yet(cluster, broker):
    tag = f"{time.monotonic_ns()}"
    names = {"stock": f"s-{tag}", "volume": f"v-{tag}"}
    scenario = scenario_for(names)
    try:
        produce(scenario, broker, kafka_time="event")
        assert [t.partitions for t in cluster.topics(list(names.values()))] == [3, 3]
        got = read(broker, cluster, names["volume"])
        times = [r[2] for rows in got for r in rows]
        start = 1_767_623_400_000
        assert min(times) == start
        assert start + 59_900 < max(times) < start + 60_000
        half = cluster.offsets_for_time([names["volume"]], start + 30_000)[names["volume"]]
        assert sum(half) == 1500
    finally:
        cluster.delete_topics(names.values())


def test_a_rate_is_kept(cluster, topics, broker):
    scenario = scenario_for(topics("stock", "volume", partitions=3), "rows = 300\nrate = 200")
    begun = time.monotonic()
    assert produce(scenario, broker).rows == 600
    assert time.monotonic() - begun > 1.2


def test_a_speed_and_as_fast_as_possible(cluster, topics, broker):
    scenario = scenario_for(topics("stock", "volume", partitions=3), "rows = 300\nrate = 1")
    begun = time.monotonic()
    assert produce(scenario, broker, speed=100.0).rows == 600
    assert 2.5 < time.monotonic() - begun < 60
    begun = time.monotonic()
    assert produce(scenario, broker, speed=None).rows == 600
    assert time.monotonic() - begun < 60


def test_a_failed_process_is_an_error(cluster, topics, broker, monkeypatch):
    names = topics("stock", "volume", partitions=3)
    scenario = scenario_for(names)
    # An option that only the children look at: the admin client has no such setting.
    with pytest.raises(ProduceError, match="linger"):
        produce(scenario, broker, processes=2, options={"linger.ms": "soon"})


def test_a_missing_topic_is_named(broker):
    with (
        Sender(broker, timeout_s=5) as sender,
        pytest.raises(TopicProblem, match="no topic 'absent'"),
    ):
        sender.partitions("absent")


def test_a_5_mb_value(cluster, topics, broker):
    (name,) = topics("large", partitions=1).values()
    with Sender(broker, compression=None) as sender:
        values = pa.array([b"a", b"x" * 5_000_000, b"b"])
        sender.send_rows(
            name,
            partitions_of(pa.array(["k", "k", "k"]), 1),
            pa.array(["k", None, "k"]),
            values,
            pa.array([1, 2, 3]).to_numpy(),
        )
    ((first, large, last),) = read(broker, cluster, name)
    assert (first, last) == ((b"k", b"a", 1), (b"k", b"b", 3))
    assert large == (None, b"x" * 5_000_000, 2)


# -------------------------------------------------------------------------------------- replay


def test_the_sample_day_can_be_replayed(cluster, broker, request, tmp_path):
    text = (request.config.rootpath / "samples" / "day-2026-01-05.jsonl").read_text()
    tag = f"-{time.monotonic_ns()}"
    day = tmp_path / "day.jsonl"
    lines = [json.loads(line) for line in text.splitlines()]
    day.write_text("\n".join(json.dumps(row | {"topic": row["topic"] + tag}) for row in lines))
    names = [f"{n}{tag}" for n in ("stock", "volume", "review")]
    try:
        summary = replay(day, broker, partitions=2)
        assert {t.topic: t.rows for t in summary.topics} == dict(
            zip(names, (1000, 1000, 200), strict=True)
        )
        got = [r for rows in read(broker, cluster, names[2]) for r in rows]
        assert sorted(r[0].decode() for r in got) == sorted(
            row["key"] for row in lines if row["topic"] == "review"
        )
        objects = [
            json.loads(r[1])
            for r in got
            if r[1] is not None and b"\xff" not in r[1] and r[1].endswith(b"}")
        ]
        assert len(objects) > 190
    finally:
        cluster.delete_topics(set(names) & set(cluster.existing_topics()))


def test_own_timing_a_speed_up_and_unknown_times(cluster, topics, broker, tmp_path):
    (name,) = topics("messages", partitions=1).values()
    rows = [
        {"symbol": "A", "ts": "2026-01-05T14:30:00Z", "n": 0},
        {"symbol": "A", "n": 1},
        {"symbol": "A", "ts": "2026-01-05T14:30:02Z", "n": 2},
        {"symbol": "A", "ts": "2026-01-05T14:30:01Z", "n": 3},
        {"ts": "2026-01-05T09:30:04-05:00", "n": 4},
    ]
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    now = [100.0]
    summary = replay(
        path,
        broker,
        speed=2.0,
        clock=lambda: now[0],
        sleep=lambda s: now.__setitem__(0, now[0] + s),
    )
    assert summary.seconds == pytest.approx(2.0, abs=0.06)
    ((*got,),) = read(broker, cluster, name)
    assert [json.loads(r[1])["n"] for r in got] == [0, 1, 2, 3, 4]
    assert [r[0] for r in got] == [b"A"] * 4 + [None]


@pytest.mark.parametrize("records", [True, False])
def test_parquet(cluster, topics, broker, tmp_path: Path, records):
    (name,) = topics("columns", partitions=1).values()
    path = tmp_path / f"{name}.parquet"
    if records:
        table = pa.table(
            {
                "topic": [name] * 3,
                "key": ["A", None, "B"],
                "value": pa.array([b"\xff", None, b"{}"]),
                "kafka_ms": pa.array([1000, None, 2000], pa.timestamp("ms", "UTC")),
            }
        )
        wanted_rows = [(b"A", b"\xff"), (None, None), (b"B", b"{}")]
    else:
        table = pa.table(
            {
                "symbol": ["A", "B"],
                "ts": pa.array([0, 1], pa.timestamp("us", "UTC")),
                "price": [1.5, None],
            }
        )
        wanted_rows = [
            (b"A", b'{"symbol":"A","ts":"1970-01-01T00:00:00Z","price":1.5}'),
            (b"B", b'{"symbol":"B","ts":"1970-01-01T00:00:00.000001Z"}'),
        ]
    pq.write_table(table, path)
    seen: list[ProduceProgress] = []
    assert replay(path, broker, progress=seen.append).rows == len(table)
    assert seen[-1].total == len(table)
    ((*got,),) = read(broker, cluster, name)
    assert [r[:2] for r in got] == wanted_rows


# ------------------------------------------------------------------------------ mended rows


def mended_file(path: Path, names: dict[str, str], shares: list[int]) -> Path:
    rows = [{"symbol": "A", "ts": "2026-01-05T14:30:00Z", "shares": each} for each in shares]
    lines = [json.dumps({"topic": names["volume"], "value": json.dumps(row)}) for row in rows]
    path.write_text("\n".join(lines))
    return path


def committed(bootstrap: str, topic: str) -> list[int]:
    """The shares of every row that the stream may see."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_wait_ms=50,
    )
    places = [TopicPartition(topic, p) for p in (consumer.partitions_for_topic(topic) or ())]
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(places)
    found: list[int] = []
    deadline = time.monotonic() + 30
    while any(consumer.position(place) < ends[place] for place in places):
        assert time.monotonic() < deadline
        for records in consumer.poll(timeout_ms=200).values():
            found += [json.loads(record.value)["shares"] for record in records]
    consumer.close()
    return sorted(found)


def test_mended_rows_are_sent_once_whatever_stopped_the_first_try(
    cluster, topics, broker, tmp_path, monkeypatch, capsys
):
    names = topics("stock", "volume", "review", partitions=2)
    streams = "".join(
        f'[streams.{name}]\nschema = "{name}"\ntopic = "{topic}"\n' for name, topic in names.items()
    )
    query = tmp_path / "query.toml"
    query.write_text(f'{streams}[join]\ninputs = ["stock", "volume", "review"]\non = ["symbol"]\n')

    def replay_file(path: Path) -> tuple[int, str]:
        sets = (f"query={query}", f"kafka.bootstrap_servers={broker}")
        with pytest.raises(SystemExit) as it:
            main([*(f"--set={each}" for each in sets), "quarantine", "replay", str(path)])
        said = capsys.readouterr()
        return int(it.value.code or 0), said.out + said.err

    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    file = mended_file(tmp_path / "mended.jsonl", names, [1, 2, 3])
    # A topic that does not exist, below a good line: nothing is sent, and that is said at once.
    cluster.delete_topics([names["review"]])
    review = '{"symbol": "A", "ts": "2026-01-05T14:30:00Z", "reviewer": "r", "rating": 1}'
    wrong = tmp_path / "wrong.jsonl"
    gone = json.dumps({"topic": names["review"], "value": review})
    wrong.write_text(file.read_text() + "\n" + gone)
    began = time.monotonic()
    code, said = replay_file(wrong)
    assert (code, time.monotonic() - began < 20) == (2, True)
    assert f"line 4, column 1: there is no topic '{names['review']}'" in said
    assert "Nothing was sent" in said
    assert committed(broker, names["volume"]) == []
    # The broker refuses one row half-way: the whole file is taken back.
    real = mended._acknowledged

    def refuses_the_last(row: mended.Mended, future: object) -> None:
        real(row, future)
        if row.line == 3:
            raise KafkaError("line 3: as if refused")

    with monkeypatch.context() as patch:
        patch.setattr(mended, "_acknowledged", refuses_the_last)
        code, said = replay_file(file)
    assert code == 3
    assert "line 3: as if refused). Nothing was sent: send the file again" in said
    assert committed(broker, names["volume"]) == []
    # The process dies half-way: what it has left open is taken back by the next try.
    with monkeypatch.context() as patch:
        patch.setattr(mended, "_within", lambda act, *_: act() if "init" in str(act) else None)
        assert replay_file(file)[0] == 0  # it believes that it has committed
    code, said = replay_file(file)
    assert (code, said) == (0, "3 rows sent\n")
    assert committed(broker, names["volume"]) == [1, 2, 3]
