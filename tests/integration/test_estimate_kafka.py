"""A sample of real topics: just the messages of its ranges, and an estimate of their results."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaProducer

from spillway.cli import main
from spillway.estimate.reading import sampled_rows
from spillway.estimate.sampling import drawn
from spillway.kafka.client import KafkaCluster
from spillway.kafka.reading import TopicReader

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

ROWS = 6_000


def test_a_sample_of_real_topics(
    broker: str,
    cluster: KafkaCluster,
    topics: Callable[..., dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Between the rows lie markers of transactions, and one that was aborted."""
    rng = random.Random(3)
    names = topics("a", "b", partitions=2)
    keys = {name: [int(rng.paretovariate(1)) % 50 for _ in range(ROWS)] for name in names}
    producer = KafkaProducer(bootstrap_servers=broker, transactional_id=names["a"], linger_ms=5)
    producer.init_transactions()
    for begin in range(0, ROWS, ROWS // 4):
        producer.begin_transaction()
        for name, topic in names.items():
            for n, key in enumerate(keys[name][begin : begin + ROWS // 4], begin):
                value = json.dumps({"k": key, "n": n}).encode()
                producer.send(topic, value, partition=n % 2, timestamp_ms=1_000 + n)
        producer.commit_transaction()
        producer.begin_transaction()
        for topic in names.values():
            producer.send(topic, b'{"k":1}', partition=1)
        producer.flush()
        producer.abort_transaction()
    producer.close()

    # An offset lost to a marker or to what was aborted gives no message; all others are given once.
    ends = cluster.end_offsets([names["a"]])[names["a"]]
    assert ends == [ROWS // 2 + 4, ROWS // 2 + 12]
    draw = np.random.default_rng(1)
    with TopicReader(broker, {}) as reader:
        for most in (10**6, 2_000):
            found = drawn([0, 0], ends, most, draw)
            wanted = {
                (block.partition, offset): block.group
                for block in found.blocks
                for offset in range(block.begin, block.end)
            }
            got = [
                (json.loads(value)["n"], group, kafka_ms)
                for rows in sampled_rows(reader, names["a"], found)
                for group, kafka_ms, value in zip(
                    rows.groups.tolist(),
                    rows.kafka_ms.tolist(),
                    rows.values.to_pylist(),
                    strict=True,
                )
            ]
            numbers = [n for n, _, _ in got]
            assert len(set(numbers)) == len(numbers)
            assert all(kafka_ms == 1_000 + n for n, _, kafka_ms in got)
            if most > ROWS:
                assert sorted(numbers) == list(range(ROWS))
            assert len(wanted) - 16 <= len(got) <= len(wanted)
            # Row n lies behind at most as many markers and aborted rows as there are.
            for n, group, _ in got:
                near = range(n // 2, n // 2 + 13)
                assert group in {wanted.get((n % 2, offset)) for offset in near}

    exact = sum(n * Counter(keys["b"])[key] for key, n in Counter(keys["a"]).items())
    file = tmp_path / "q.toml"
    file.write_text(
        "".join(
            f'[streams.{name}]\ntopic = "{topic}"\nfields = {{ k = "int" }}\n'
            for name, topic in names.items()
        )
        + '[join]\ninputs = ["a", "b"]\non = ["k"]\n'
    )
    for rows in (ROWS * 2, ROWS // 2):
        sets = [f"--set=kafka.bootstrap_servers={broker}", f"--set=query={file}"]
        with pytest.raises(SystemExit) as ended:
            main([*sets, "explain", "--estimate", "--json", "--rows", str(rows)])
        assert ended.value.code == 0
        guess = json.loads(capsys.readouterr().out)["estimate"]
        assert guess["results"]["exact"] == (rows > ROWS)
        assert guess["results"]["low"] <= exact <= guess["results"]["high"]
    assert guess["keys"][0]["key"] == json.dumps([Counter(keys["a"]).most_common(1)[0][0]])
