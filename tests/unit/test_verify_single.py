"""The proof of one join without Spark: parts, processes, and the keys that fail."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spillway.decode import compile_streams
from spillway.kafka.reading import TopicRange
from spillway.kafka.wire import Records
from spillway.sealed_input.decoding import TopicRanges
from spillway.storage import folder
from spillway.stream import messages
from spillway.stream.messages import MessageSource
from spillway.verify import single
from spillway.verify.processes import ProofProcessDied, ProofProcesses, processes_for
from spillway.verify.single import SingleProof, file_parts, input_parts
from spillway.verify.sums import SumPlan
from spillway.verify.tasks import ProofSource, ProofTasks, ResultFiles, ResultsDamaged
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.killed import assert_ends_with_its_own

QUERY = query_of(
    parse_toml(
        """
[streams.a]
fields = { k = "int", x = "int" }
[streams.b]
fields = { k = "int", x = "int" }
[join]
inputs = ["a", "b"]
on = [{ name = "k", columns = { a = "k", b = "k" } }]
""",
        Path("two.toml"),
    )
)
PLANS = compile_streams(QUERY)
SALT = 3

Message = dict[str, Any] | None


class Topics:
    """Messages of partitions, in the place of Kafka. None: one that no contract takes."""

    def __init__(self, messages: dict[tuple[str, int], list[Message]]) -> None:
        self.messages = messages

    def read(
        self, ranges: list[TopicRange], _: object = None
    ) -> Iterator[tuple[TopicRange, Records]]:
        (wanted,) = ranges
        all_ = self.messages[wanted.topic, wanted.partition]
        for at in range(wanted.begin, wanted.end, 2):
            some = all_[at : min(at + 2, wanted.end)]
            values = [b"no" if m is None else json.dumps(m).encode() for m in some]
            offsets = np.arange(at, at + len(some))
            yield wanted, Records(offsets, offsets * 0, pa.array(values, pa.large_binary()))

    @property
    def begins(self) -> dict[str, list[int]]:
        return {topic: [0] * len(ends) for topic, ends in self.ends.items()}

    @property
    def ends(self) -> dict[str, list[int]]:
        ends: dict[str, list[int]] = {}
        for (topic, _), some in sorted(self.messages.items()):
            ends.setdefault(topic, []).append(len(some))
        return ends


def day(rng: np.random.Generator) -> Topics:
    def messages(n: int) -> list[Message]:
        return [
            None if rng.random() < 0.1 else {"k": int(rng.integers(4)), "x": int(rng.integers(9))}
            for _ in range(n)
        ]

    return Topics({(PLANS[i].topic, p): messages(5 + i + p) for i in (0, 1) for p in (0, 1)})


def rows_of(topics: Topics, i: int) -> list[dict[str, Any]]:
    return [
        {"k": m["k"], "x": m["x"], "partition": p, "offset": n}
        for (topic, p), messages in topics.messages.items()
        for n, m in enumerate(messages)
        if topic == PLANS[i].topic and m is not None
    ]


def results_of(topics: Topics) -> list[dict[str, Any]]:
    """All results, by nested loops."""
    return [
        {
            "k": one["k"],
            **{f"a_{at}": one[at] for at in ("x", "partition", "offset")},
            **{f"b_{at}": other[at] for at in ("x", "partition", "offset")},
            "phase": "run-time" if (one["offset"] + other["offset"]) % 2 else "cleanup",
        }
        for one in rows_of(topics, 0)
        for other in rows_of(topics, 1)
        if one["k"] == other["k"]
    ]


def rejected_of(topics: Topics) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": p, "offset": n}
        for (topic, p), messages in topics.messages.items()
        for n, m in enumerate(messages)
        if m is None
    ]


def written(place: Path, name: str, rows: Sequence[dict[str, Any]], files: int) -> list[Any]:
    (place / name).mkdir()
    found = []
    for n in range(files):
        mine = [
            row | {k: np.int32(v) for k, v in row.items() if k.endswith("partition")}
            for row in rows[n::files]
        ]
        if mine:
            pq.write_table(pa.Table.from_pylist(mine), place / name / f"{n}.parquet")
            found.append((f"{n}.parquet", len(mine)))
    return found


def proved(
    place: Path, topics: Topics, results: list[dict[str, Any]], held: list[dict[str, Any]]
) -> tuple[dict[str, int], list[int]]:
    """Totals, and the keys that fail."""
    files = written(place, "results", results, 3)
    away = written(place, "quarantine", held, 1)
    proof = SingleProof(
        PLANS,
        TopicRanges(MessageSource("nowhere:1", {}), topics.begins, topics.ends),
        (folder(str(place / "results")), files),
        (folder(str(place / "quarantine")), [path for path, _ in away]),
        SALT,
        1,
        lambda: pytest.fail("nothing is joined here"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(messages._readers, ("nowhere:1",), topics)
        found = proof.judged()
    spool = proof._spool
    assert spool.exists()
    proof.close()
    assert not spool.exists()
    return dict(found.totals), sorted(found.failing.column("k0").to_pylist())


@pytest.mark.parametrize("seed", range(6))
def test_a_whole_day(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "ROWS_A_PART", 3)
    topics = day(np.random.default_rng(seed))
    results, rejected = results_of(topics), rejected_of(topics)
    keys = {row["k"] for i in (0, 1) for row in rows_of(topics, i)}
    late = sum(each["phase"] == "cleanup" for each in results)
    whole = {
        "expected": len(results),
        "run_time": len(results) - late,
        "cleanup": late,
        "keys": len(keys),
        "failing": 0,
        "rejected": len(rejected),
        "quarantined": len(rejected),
        "rejected_wrong": 0,
    }
    (tmp_path / "right").mkdir()
    assert proved(tmp_path / "right", topics, results, rejected) == (whole, [])
    assert results
    for name, wrong, which in (
        ("missing", results[1:], results[0]["k"]),
        ("doubled", [*results, results[-1]], results[-1]["k"]),
        ("altered", [results[0] | {"b_x": 77}, *results[1:]], results[0]["k"]),
        ("of no row", [*results, results[0] | {"k": 99}], 99),
    ):
        (tmp_path / name).mkdir()
        totals, failing = proved(tmp_path / name, topics, wrong, rejected)
        assert (totals["failing"], failing) == (1, [which]), name
    if rejected:
        (tmp_path / "other").mkdir()
        other = [rejected[0] | {"offset": 1_000}, *rejected[1:]]
        totals, failing = proved(tmp_path / "other", topics, results, other)
        assert (totals["rejected_wrong"], failing) == (1, [])


def test_more_failing_keys_than_are_joined_by_themselves_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "FEW_KEYS", 1)
    three: list[Message] = [{"k": k, "x": 1} for k in range(3)]
    topics = Topics({("a", 0): three, ("b", 0): three})
    totals, failing = proved(tmp_path, topics, [], [])
    assert (totals["failing"], failing) == (3, [])


def test_parts_cover_the_input_and_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "ROWS_A_PART", 10)
    source = TopicRanges(MessageSource("h:1", {}), {"t": [3, 7, 5]}, {"t": [25, 7, 6]})
    assert input_parts(source) == [
        TopicRange("t", 0, 3, 13),
        TopicRange("t", 0, 13, 23),
        TopicRange("t", 0, 23, 25),
        TopicRange("t", 2, 5, 6),
    ]
    files = [("a", 4), ("b", 25), ("c", 3), ("d", 8), ("e", 1)]
    parts = file_parts(files, 1)
    assert [each.paths for each in parts] == [("b",), ("d",), ("a", "c"), ("e",)]
    assert file_parts([], 2) == []
    assert [processes_for(n, 8) for n in (0, 999_999, 1_000_000, 10**9)] == [1, 1, 2, 8]


@pytest.mark.server
def test_processes_give_what_one_gives_and_raise_what_a_task_raises(tmp_path: Path) -> None:
    """Two real processes."""
    topics = day(np.random.default_rng(1))
    results = results_of(topics)
    files = written(tmp_path, "results", results, 3)
    plan = SumPlan(tuple(PLANS), SALT, 2)
    spool = tmp_path / "spool"
    spool.mkdir()
    place = folder(str(tmp_path / "results"))
    source = ProofSource(MessageSource("nowhere:1", {}), place, place, spool)
    parts = [ResultFiles((path,)) for path, _ in files]
    processes = ProofProcesses(plan, source, 2)
    try:
        counted = list(processes.each(ProofTasks.summed, parts))
        assert processes.how_far() == "3 of 3 tasks"
        assert sum(each.run_time + each.cleanup for each in counted) == len(results)
        judged = list(processes.each(ProofTasks.judged, range(2)))
        assert sum(each.failing for each in judged) == len({each["k"] for each in results})
        with pytest.raises(Exception, match=r"none\.parquet is not what was written"):
            list(processes.each(ProofTasks.summed, [ResultFiles(("none.parquet",))]))
    finally:
        processes.close()


@pytest.mark.server
def test_a_process_that_dies_is_told_and_none_outlives_the_proof(tmp_path: Path) -> None:
    """What a proof that is killed leaves behind ends by itself."""
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tests.unit.test_verify_single import PLANS, SALT\n"
        "from spillway.storage import folder\n"
        "from spillway.stream.messages import MessageSource\n"
        "from spillway.verify.processes import ProofProcesses\n"
        "from spillway.verify.sums import SumPlan\n"
        "from spillway.verify.tasks import ProofSource\n"
        "from tests.unit.test_verify_single import pid_of\n"
        "place = folder(sys.argv[1])\n"
        "source = ProofSource(MessageSource('h:1', {}), place, place, Path(sys.argv[1]))\n"
        "pool = ProofProcesses(SumPlan(tuple(PLANS), SALT, 2), source, 2)\n"
        "print(*pool.each(pid_of, [0]), flush=True)\n"
        "time.sleep(60)\n"
    )
    assert_ends_with_its_own(program, str(tmp_path))
    place = folder(str(tmp_path))
    source = ProofSource(MessageSource("h:1", {}), place, place, tmp_path)
    processes = ProofProcesses(SumPlan(tuple(PLANS), SALT, 2), source, 2)
    try:
        with pytest.raises(ProofProcessDied, match="ended from outside"):
            list(processes.each(kill_itself, [0]))
    finally:
        processes.close()


def pid_of(_: ProofTasks, __: int) -> int:
    return os.getpid()


def kill_itself(_: ProofTasks, __: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_of_another_type_are_told_as_damage(tmp_path: Path) -> None:
    topics = day(np.random.default_rng(1))
    (path, _), *_ = written(tmp_path, "results", results_of(topics), 1)
    table = pq.read_table(tmp_path / "results" / path)
    column = pa.array(["x"] * len(table))
    pq.write_table(table.set_column(0, "k", column), tmp_path / "results" / path)
    place = folder(str(tmp_path / "results"))
    tasks = ProofTasks(
        SumPlan(tuple(PLANS), SALT, 1),
        ProofSource(MessageSource("h:1", {}), place, place, tmp_path),
    )
    with pytest.raises(ResultsDamaged, match=r"0\.parquet on is not what was written"):
        tasks.summed(ResultFiles((path,)))
