"""A sample of real topics: just the messages of its ranges, and an estimate of their results."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from spillway.cli import main
from spillway.kafka.client import KafkaCluster
from spillway.kafka.ranges import NEAR_OFFSETS, messages_of

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
    assert list(messages_of(broker, {}, names["a"], [])) == []
    ends = cluster.end_offsets([names["a"]])[names["a"]]
    assert ends == [ROWS // 2 + 4, ROWS // 2 + 12]
    every = [(p, 0, ends[p]) for p in range(2)]
    found = list(messages_of(broker, {}, names["a"], every))
    assert sorted(json.loads(each.value or b"")["n"] for each in found) == list(range(ROWS))
    assert {each.kafka_ms for each in found} == {1_000 + n for n in range(ROWS)}
    ranges = [
        (p, begin, min(begin + rng.randrange(1, 90), ends[p]))
        for p in range(2)
        for begin in [*sorted(rng.sample(range(0, 2_900, 100), 6)), ends[p] - 90]
    ]
    assert max(b[1] - a[2] for a, b in itertools.pairwise(ranges)) > NEAR_OFFSETS / 2
    some = Counter(
        (each.range, json.loads(each.value or b"")["n"])
        for each in messages_of(broker, {}, names["a"], ranges)
    )
    assert max(some.values()) == 1
    got = {n for _, n in some}
    for at, (p, begin, end) in enumerate(ranges):
        mine = [n for where, n in some if where == at]
        assert all(n % 2 == p for n in mine)
        assert end - begin - 3 <= len(mine) <= end - begin, "but markers and what was aborted"
        assert mine == sorted(mine)
        assert len(mine) < 2 or mine[-1] - mine[0] == 2 * (len(mine) - 1), "nothing in between"
    assert len(got) == sum(some.values())

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
