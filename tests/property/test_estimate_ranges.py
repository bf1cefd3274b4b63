"""Estimates by a sample: the counts against brute force, the blocks against what was promised, and
the ranges against exact numbers of generated keys.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import event
from hypothesis import strategies as st

from spillway.clock import rfc3339
from spillway.decode.values import LeafValues, TreeValues, leaf_plans, values_of
from spillway.estimate import counting
from spillway.estimate.counting import LeafSample, SampleTooLarge, counted, unmet
from spillway.estimate.reading import SampledRows, _sampled
from spillway.estimate.sampling import BLOCK_OFFSETS, GROUPS, Drawn, OffsetBlock, drawn
from spillway.estimate.scaling import largest, student, total
from spillway_schemas.query import Query, load_query, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_query_trees import text_of, value_of
from tests.property.test_verify_trees import all_results, stream_rows

Row = dict[str, Any]
I64 = npt.NDArray[np.int64]


def query_from(text: str) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


def sampled(
    query: Query, rows: Mapping[str, list[Row]], rng: random.Random
) -> tuple[list[LeafSample], dict[str, list[int]]]:
    """Everything is read, each row as a block of its own; and the groups that rows were dealt to,
    by leaf."""
    values = values_of(query)
    samples, groups = [], {}
    for leaf, plan in zip(values.leaves, leaf_plans(query, values), strict=True):
        mine = rows[query.stream_name(leaf.name)]
        groups[leaf.name] = [rng.randrange(GROUPS) for _ in mine]
        blocks = [OffsetBlock(0, n, n + 1, group) for n, group in enumerate(groups[leaf.name])]
        chosen = rng.sample(range(len(mine)), len(mine))
        given = [
            SampledRows(
                np.array([groups[leaf.name][n]]),
                np.array([2**41]),
                pa.array([json.dumps(mine[n]).encode()], pa.large_binary()),
            )
            for n in chosen
        ]
        draw = Drawn(tuple(blocks), 1.0, len(mine), 0)
        sample, said, _ = _sampled(query, leaf, plan, draw, given)
        assert said.kept == len(mine) >= sample.rows.height
        samples.append(sample)
    return samples, groups


def agrees(
    query: Query, rows: Mapping[str, list[Row]], results: list[Row], rng: random.Random
) -> None:
    """The counts of each leaf are those of these results, by key and group."""
    samples, groups = sampled(query, rows, rng)
    values = values_of(query)
    found = counted(query, values, samples)
    for leaf, frame in zip(values.leaves, found, strict=True):
        expected = Counter(
            (
                *(result[name] for name, _ in values.root),
                groups[leaf.name][result[f"{leaf.name}_offset"]],
            )
            for result in results
        )
        assert dict(expected) == {row[:-1]: row[-1] for row in frame.iter_rows()}
    exact = total(found, samples)
    assert exact.is_exact
    assert exact.value == len(results)


@explored(30, 150, st.integers(0, 2**32), st.integers(0, 2**32), soak=600)
def test_a_trees_results_are_counted_by_key_and_group(number: int, seed: int) -> None:
    query = query_from(text_of(number))
    rows = stream_rows(query, seed)
    results = all_results(query, rows)
    agrees(query, rows, results, random.Random(seed))
    event(f"joins {len(query.joins)}, results: {bool(results)}")


STREAM = """
[streams.{0}]
fields = {{ k = "int", l = "int", at = "timestamp" }}
time = "at"
"""
WINDOWED = {
    "one join": """
[join]
inputs = ["a", "b", "c"]
on = ["k"]
window = "3 seconds"
""",
    "bands": """
[join]
inputs = ["a", "b", "c"]
on = ["k"]
within = { b = "-1 second .. 2 seconds", c = "1 second .. 4 seconds" }
""",
    "tree": """
[join.ab]
inputs = ["a", "b"]
on = ["k"]
window = "3 seconds"
[join.abc]
inputs = ["ab", "c"]
on = [{ name = "l", columns = { ab = "a.l", c = "l" } }]
within = { c = "-2 seconds .. 1 second" }
""",
    "half of a tree": """
[join.ab]
inputs = ["a", "b"]
on = ["k"]
window = "2 seconds"
[join.abc]
inputs = ["ab", "c"]
on = [{ name = "l", columns = { ab = "a.l", c = "l" } }]
""",
}


def windowed(kind: str) -> Query:
    """Of three streams; where half of a tree has a window, the third has no time."""
    streams = [STREAM.format(name) for name in "abc"]
    if kind == "half of a tree":
        streams[2] = streams[2].replace('time = "at"', "")
    return query_from("".join(streams) + WINDOWED[kind])


def in_time(query: Query, times: Mapping[str, int]) -> bool:
    """Whether the times of a result's rows join, by the words of the query."""
    for join, span in zip(query.tree.joins, query.spans, strict=True):
        if span is None:
            continue
        below = [[times[leaf] for leaf in query.tree.below(each)] for each in join.inputs]
        every = [time for each in below for time in each]
        if span.bands_us is None:
            if max(every) - min(every) > span.width_us:
                return False
        elif not all(
            low <= later - first <= high
            for (low, high), part in zip(span.bands_us[1:], below[1:], strict=True)
            for later, first in itertools.product(part, below[0])
        ):
            return False
    return True


@explored(20, 200, st.sampled_from(sorted(WINDOWED)), st.integers(0, 2**32))
def test_with_windows_only_what_lies_in_time_counts(kind: str, seed: int) -> None:
    query = windowed(kind)
    rng = random.Random(seed)
    rows = {
        name: [
            {"k": rng.randrange(2), "l": rng.randrange(2), "second": rng.randrange(8), "offset": n}
            for n in range(rng.randint(0, 6))
        ]
        for name in query.streams
    }
    results = []
    for picked in itertools.product(*(rows[leaf] for leaf in query.inputs)):
        of = dict(zip(query.inputs, picked, strict=True))
        keys = {
            key.name: {value_of(of, query.tree.source(key, each)) for each in join.inputs}
            for join in query.tree.joins
            for key in join.keys
        }
        times = {leaf: row["second"] * 1_000_000 for leaf, row in of.items()}
        if all(len(each) == 1 for each in keys.values()) and in_time(query, times):
            found: Row = {name: each.pop() for name, each in keys.items()}
            results.append(found | {f"{leaf}_offset": row["offset"] for leaf, row in of.items()})
    for row in itertools.chain(*rows.values()):
        row["at"] = rfc3339(row["second"] * 1000)
    agrees(query, rows, results, rng)
    event(f"{kind}, results: {bool(results)}")


def test_a_join_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    query = windowed("tree")
    rows = [{"k": 1, "l": 1, "at": rfc3339(0)} for _ in range(4)]
    samples, _ = sampled(query, dict.fromkeys("abc", rows), random.Random(1))
    monkeypatch.setattr(counting, "MOST_JOINED", 15)
    with pytest.raises(SampleTooLarge, match="16 rows in one join, more than 15"):
        counted(query, values_of(query), samples)


# --- which offsets are read ------------------------------------------------------------------


@explored(
    30,
    300,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 20_000)), min_size=1, max_size=5),
    st.integers(1, 30_000),
    st.integers(0, 2**32),
)
def test_blocks_lie_apart_within_their_partitions(
    partitions: list[tuple[int, int]], most: int, seed: int
) -> None:
    begins = [begin for begin, _ in partitions]
    ends = [begin + length for begin, length in partitions]
    found = drawn(begins, ends, most, np.random.default_rng(seed))
    assert found.offsets == sum(length for _, length in partitions)
    before: dict[int, int] = {}
    for block in found.blocks:
        assert before.get(block.partition, begins[block.partition]) <= block.begin < block.end
        assert block.end <= ends[block.partition]
        assert (block.begin - begins[block.partition]) % BLOCK_OFFSETS == 0
        before[block.partition] = block.end
    read = sum(block.end - block.begin for block in found.blocks)
    assert read <= max(most, GROUPS * BLOCK_OFFSETS)
    if found.offsets <= most:
        assert found.fraction == (1.0 if found.offsets else 0.0)
        assert read == found.offsets
    covered = {p: np.zeros(length + 2, np.bool_) for p, (_, length) in enumerate(partitions)}
    for edges in covered.values():
        edges[[0, -1]] = True
    for block in found.blocks:
        begin = begins[block.partition] - 1
        covered[block.partition][block.begin - begin : block.end - begin] = True
    gaps = [np.diff(np.flatnonzero(each)).max() - 1 for each in covered.values()]
    assert found.gap_offsets == max(gaps)
    sizes = Counter(block.group for block in found.blocks)
    assert max(sizes.values(), default=0) - min(sizes.get(g, 0) for g in range(GROUPS)) <= 1


def test_each_block_is_read_with_the_same_probability() -> None:
    begins, ends = [5, 0, 100], [5_005, 0, 4_103]
    times: Counter[tuple[int, int]] = Counter()
    draw, tries = np.random.default_rng(4), 3_000
    for _ in range(tries):
        found = drawn(begins, ends, 2_100, draw)
        times.update((block.partition, block.begin) for block in found.blocks)
    blocks = {(p, b) for p in range(3) for b in range(begins[p], ends[p], BLOCK_OFFSETS)}
    assert set(times) == blocks
    spread = (found.fraction * (1 - found.fraction) / tries) ** 0.5
    for count in times.values():
        assert abs(count / tries - found.fraction) < 5 * spread


# --- how far it is off -----------------------------------------------------------------------

N, MOST = 100_000, 8_000


def zipf(draw: np.random.Generator, exponent: float, keys: int) -> I64:
    weight = 1 / np.arange(1, keys + 1) ** exponent
    return draw.choice(keys, N, p=weight / weight.sum())


def half_of_one_key(draw: np.random.Generator) -> I64:
    return np.where(draw.random(N) < 0.5, 1, draw.integers(2, 20_000, N))


def by_minute(draw: np.random.Generator) -> I64:
    """Symbols, most of the first, in each of 390 minutes that come one after the other."""
    return np.sort(draw.integers(0, 390, N)) * 400 + np.minimum(draw.zipf(1.3, N), 400) - 1


KEYS: dict[str, tuple[int, Callable[[np.random.Generator], I64]]] = {
    "even": (3, lambda draw: draw.integers(0, 500, N)),
    "sparse": (2, lambda draw: draw.integers(0, N // 5, N)),
    "each once": (2, lambda draw: draw.permutation(N)),
    "Zipf 0.8": (2, lambda draw: zipf(draw, 0.8, 100_000)),
    "Zipf 1": (3, lambda draw: zipf(draw, 1.0, 5_000)),
    "Zipf 2": (3, lambda draw: zipf(draw, 2.0, 5_000)),
    "half of one key": (2, half_of_one_key),
    "in lockstep": (2, lambda draw: np.arange(N)),
    "sorted by key": (2, lambda draw: np.sort(zipf(draw, 1.0, 5_000))),
    "five inputs": (5, lambda draw: zipf(draw, 1.0, 300)),
    "by minute": (2, by_minute),
}

SINGLE = """
[streams.s0]
fields = { k = "int" }
[streams.s1]
fields = { k = "int" }
[join]
inputs = ["s0", "s1"]
on = ["k"]
"""


def taken(keys: I64, draw: np.random.Generator, most: int = MOST) -> LeafSample:
    """A sample of a topic of four partitions that hold these keys, one after another."""
    found = drawn([0] * 4, [len(keys) // 4] * 4, most, draw)
    at = [np.arange(b.begin, b.end) + b.partition * (len(keys) // 4) for b in found.blocks]
    groups = [np.full(b.end - b.begin, b.group) for b in found.blocks]
    rows = pl.DataFrame({"v0": keys[np.concatenate(at)], "group": np.concatenate(groups)})
    return LeafSample(rows, found.fraction)


@pytest.mark.parametrize("kind", KEYS)
def test_19_of_20_samples_have_the_exact_number_in_their_range(kind: str) -> None:
    inputs, make = KEYS[kind]
    draw = np.random.default_rng(5)
    topics = [make(draw) for _ in range(inputs)]
    most = max(int(keys.max()) for keys in topics) + 1
    exact = np.prod([np.bincount(k, minlength=most).astype(float) for k in topics], axis=0)
    values = TreeValues(
        tuple(LeafValues(f"s{i}", ("k",), (0,), (), ()) for i in range(inputs)), (("k", 0),)
    )
    query = query_from(SINGLE)  # that it has no window is all that is asked of it
    tries, covered, estimates, first = 20, 0, [], 0
    named: list[bool] = []
    for _ in range(tries):
        samples = [taken(keys, draw) for keys in topics]
        found = counted(query, values, samples)
        guess = total(found, samples, unmet=unmet(query, values, samples) or 1)
        estimates.append(guess.value)
        covered += guess.low <= exact.sum() <= guess.high
        keys = [(each.key[0], each.results) for each in largest(found, samples, 10)]
        named += [each.low <= exact[key] <= each.high for key, each in keys]
        first += keys[0][0] == exact.argmax()
    assert covered >= 0.95 * tries
    assert np.mean(named) >= 0.95, "keys are named for having most: their own ranges know of it"
    assert np.mean(estimates) == pytest.approx(exact.sum(), rel=0.15), "right on average"
    if exact.max() > 0.1 * exact.sum():
        assert first == tries, "the key that gives most is found"


def test_what_few_samples_exceed_is_as_in_tables_of_students_distribution() -> None:
    for tail, known in {0.025: 2.131, 0.005: 2.947, 0.001: 3.733, 0.0005: 4.073}.items():
        assert student(tail) == pytest.approx(known, rel=0.002)


def test_a_key_of_a_tiny_sample_has_at_least_what_was_found() -> None:
    """Of ten inputs: one in 10^40 results is in it."""
    rows = pl.DataFrame({"v0": [1], "group": [0]})
    values = TreeValues(
        tuple(LeafValues(f"s{i}", ("k",), (0,), (), ()) for i in range(10)), (("k", 0),)
    )
    samples = [LeafSample(rows, 1e-4)] * 10
    [key] = largest(counted(query_from(SINGLE), values, samples), samples, 5)
    assert (key.results.low, key.results.value) == (1, pytest.approx(1e40))


def test_where_no_result_is_in_the_sample_it_is_said_how_many_there_may_be() -> None:
    """Of so many, one sample in twenty has none: here of 0.1 % of the rows of each input."""
    rows = [pl.DataFrame({"v0": [n], "group": [0]}) for n in (1, 2)]
    values = TreeValues(
        tuple(LeafValues(f"s{i}", ("k",), (0,), (), ()) for i in range(2)), (("k", 0),)
    )
    samples = [LeafSample(each, 0.001) for each in rows]
    found = counted(query_from(SINGLE), values, samples)
    guess = total(found, samples)
    assert (guess.value, guess.low, guess.high) == (0, 0, pytest.approx(3e6))
    assert guess.is_rough
    assert largest(found, samples, 5) == []
    met = total(counted(query_from(SINGLE), values, [samples[0], samples[0]]), samples)
    assert 1 <= met.low < 2e5
    assert met.high == pytest.approx(met.value**2 / met.low + 3e6), "what is missed comes on top"


PAIR = TreeValues(tuple(LeafValues(f"s{i}", ("k",), (0,), (), ()) for i in range(2)), (("k", 0),))


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_few_rows_of_a_key_that_the_other_input_is_full_of_are_in_the_range(rows: int) -> None:
    """Most samples have none of them, though each has 50,000 results: no burst, and not rare.

    Kills: a sample's range that reckons with missing results which come one at a time.
    """
    query, draw = query_from(SINGLE), np.random.default_rng(3)
    few = draw.integers(10, 20_000, N)
    few[draw.choice(N, rows, replace=False)] = 1
    topics = [few, np.where(draw.random(N) < 0.5, 1, draw.integers(10, 20_000, N))]
    exact = np.prod([np.bincount(k, minlength=N).astype(float) for k in topics], axis=0).sum()
    covered, unseen = 0, 0
    for _ in range(40):
        samples = [taken(keys, draw) for keys in topics]
        found = counted(query, PAIR, samples)
        guess = total(found, samples, unmet=unmet(query, PAIR, samples) or 1)
        covered += guess.low <= exact <= guess.high
        unseen += total(found, samples).high < exact
    assert covered >= 0.95 * 40
    assert unseen > 5, "what is missed matters"


def test_what_one_more_row_would_have_is_asked_of_inputs_that_are_not_read_whole() -> None:
    """By hand. a: x once, y twice; b: y once, z five times; c: x 3, y 1, z 2. Without a's row of z:
    5 x 2; without b's of x: 1 x 3."""
    counts = [{1: 1, 2: 2}, {2: 1, 3: 5}, {1: 3, 2: 1, 3: 2}]
    values = TreeValues(
        tuple(LeafValues(f"s{i}", ("k",), (0,), (), ()) for i in range(3)), (("k", 0),)
    )
    query = query_from(SINGLE)

    def of(*fractions: float) -> float | None:
        rows = [[k for k, n in each.items() for _ in range(n)] for each in counts]
        frames = [pl.DataFrame({"v0": each, "group": [0] * len(each)}) for each in rows]
        leaves = [LeafSample(*each) for each in zip(frames, fractions, strict=True)]
        return unmet(query, values, leaves)

    assert of(0.5, 0.5, 0.5) == 10
    assert of(1.0, 0.5, 0.5) == 3
    assert of(1.0, 1.0, 0.5) == 1
    assert unmet(windowed("one join"), values, []) is None
    tree = load_query("five_way")
    assert unmet(tree, values_of(tree), []) is None


def test_keys_in_lockstep_of_which_little_is_read_are_missed_altogether() -> None:
    """The limit that `scaling` names, from both sides: 4,096^2 / 128 N is 1.3, and 8,000 are read
    in `KEYS`. What a sample without results says must not be told as a range."""
    query, draw = query_from(SINGLE), np.random.default_rng(3)
    topics = [np.arange(N)] * 2
    missed = wrong = 0
    for _ in range(40):
        samples = [taken(keys, draw, 4_096) for keys in topics]
        guess = total(
            counted(query, PAIR, samples), samples, unmet=unmet(query, PAIR, samples) or 1
        )
        missed += guess.value == 0 and guess.high < N
        wrong += guess.value > 0 and not guess.low <= N <= guess.high
    assert missed > 5
    assert wrong <= 2


def test_a_burst_between_two_blocks_is_not_seen() -> None:
    """What `gap_offsets` tells of: half of all results in 400 rows of each topic."""
    draw = np.random.default_rng(2)
    topics = [draw.integers(10, N, N) for _ in range(2)]
    for keys in topics:
        keys[1_000:1_400] = 1
    values = TreeValues(
        tuple(LeafValues(f"s{i}", ("k",), (0,), (), ()) for i in range(2)), (("k", 0),)
    )
    missed = 0
    for _ in range(20):
        samples = [taken(keys, draw) for keys in topics]
        guess = total(counted(query_from(SINGLE), values, samples), samples)
        missed += guess.high < 400**2 + N
    assert missed > 5
