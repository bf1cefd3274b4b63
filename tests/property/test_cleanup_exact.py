"""Cleanup against brute force: exactly the combinations that are not all of one generation, and of
an outer join those that lack optional rows."""

import random
import tempfile
from collections import Counter
from collections.abc import Collection
from itertools import product

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck

from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import TreeSpec, one_join
from spillway.engine.spill import spillfile
from spillway.engine.spill.cleanup import clean_ranges
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.spill.spillfile import SpillFile, survey, write_spill
from spillway.storage import folder
from spillway_schemas.journal import Prefix
from tests.lanes import explored
from tests.property.outer_reference import outer_joined

DAY = "2026-01-05"


def spec_of(inputs: int, optional: Collection[int] = ()) -> TreeSpec:
    return one_join(
        JoinSpec(
            0,
            pa.schema([pa.field("symbol", pa.string(), nullable=False)]),
            tuple(
                InputSpec(f"s{i}", pa.schema([("v", pa.string())]), optional=i in optional)
                for i in range(inputs)
            ),
        )
    )


def narrow(key: int, bits: int) -> int:
    """A hash of few bits, spread over all 64 by their place: collisions on purpose."""
    mixed = (key * 0x9E3779B97F4A7C15) % 2**64
    return (mixed >> (64 - bits)) << (64 - bits)


# A row is (input, key, epoch, offset).


def brute_force(rows, inputs, optional=()):
    """Missing and unmatched results as multisets of coordinates."""
    by_key = {}
    for row in rows:
        by_key.setdefault(row[1], []).append(row)
    found = Counter()
    for key, own in by_key.items():
        sides = [[r for r in own if r[0] == i] for i in range(inputs)]
        for combination in product(*sides):
            if len({r[2] for r in combination}) > 1:
                found[(f"k{key}", *(r[3] for r in combination))] += 1
    sides = [[(f"k{r[1]}", r[3]) for r in rows if r[0] == i] for i in range(inputs)]
    whole = outer_joined(sides, optional)
    return found + Counter({result: n for result, n in whole.items() if None in result})


def spill_all(place, spec, rows, bits, files_per_epoch):
    """One file (or more) a generation, as the slots write them."""
    surveyed = []
    for epoch in sorted({r[2] for r in rows}):
        own = [r for r in rows if r[2] == epoch]
        for part in range(files_per_epoch):
            inputs = []
            for i in range(len(spec.inputs)):
                mine = sorted(
                    (narrow(r[1], bits), r)
                    for r in own
                    # A hash lies in one slot, so in one file of an epoch.
                    if r[0] == i and narrow(r[1], bits) % 7 % files_per_epoch == part
                )
                columns = [
                    [f"k{r[1]}" for _, r in mine],
                    [f"v{r[3]}" if r[3] % 3 else None for _, r in mine],
                    [i] * len(mine),
                    [r[3] for _, r in mine],
                ]
                schema = spec.row_schema(i)
                arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
                table = pa.Table.from_arrays(arrays, schema=schema)
                inputs.append([Rows(np.array([h for h, _ in mine], np.uint64), table)])
            record = write_spill(place, f"{epoch}-x-{part}-0.parquet", spec, DAY, epoch, inputs)
            if record is not None:
                file = SpillFile(record.path, record.bytes, record.digest)
                surveyed.append((file, survey(place, file, 0)))
    return SpillIndex.of(surveyed)


def cleaned(spec, source, ranges, **sizes):
    found = Counter()
    by_range = Counter()
    last = -1
    for position, batch in clean_ranges(source, ranges, **sizes):
        table = batch.table
        assert position >= last
        last = position
        assert table.schema == spec.root.joined_schema
        by_range[position] += table.num_rows
        for row in table.to_pylist():
            offsets = [row[f"{i.name}_offset"] for i in spec.inputs]
            for i, offset in enumerate(offsets):
                assert row[f"s{i}_v"] == (f"v{offset}" if offset and offset % 3 else None)
                assert row[f"s{i}_partition"] == (i if offset is not None else None)
            found[(row["symbol"], *offsets)] += 1
    return found, by_range


@st.composite
def schedules(draw):
    inputs = draw(st.integers(2, 4))
    keys = draw(st.integers(1, 6))
    epochs = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=6)))
    n = draw(st.integers(0, 40 if inputs < 4 else 24))
    rows = [
        (
            draw(st.integers(0, inputs - 1)),
            draw(st.integers(0, keys - 1)),
            draw(st.sampled_from(epochs)),
            offset,
        )
        for offset in range(n)
    ]
    return {
        "inputs": inputs,
        "optional": set(),
        "rows": rows,
        "bits": draw(st.sampled_from([1, 2, 4, 64])),
        "depth": draw(st.integers(0, 4)),
        "files": draw(st.integers(1, 3)),
        "group_rows": draw(st.sampled_from([1, 3, 8192])),
        "piece_bytes": draw(st.sampled_from([1, 300, 700, 1500, 3000, 2**20])),
        "batch_bytes": draw(st.sampled_from([1, 500, 2**20])),
    }


def outer_schedule(rng):
    """Of an outer join: few rows of each key, keys that share hashes."""
    inputs = rng.randint(2, 4)
    keys, epochs = rng.randint(2, 8), rng.sample(range(40), rng.randint(1, 4))
    return {
        "inputs": inputs,
        "optional": set(rng.sample(range(inputs), rng.randint(1, inputs))),
        "rows": [
            (rng.randrange(inputs), rng.randrange(keys), rng.choice(epochs), offset)
            for offset in range(rng.randint(0, 3 * keys))
        ],
        "bits": rng.choice([1, 2, 4, 64]),
        "depth": rng.randint(0, 4),
        "files": rng.randint(1, 3),
        "group_rows": rng.choice([1, 3, 8192]),
        "piece_bytes": rng.choice([1, 300, 700, 1500, 3000, 2**20]),
        "batch_bytes": rng.choice([1, 500, 2**20]),
    }


@explored(10, 60, schedules(), suppressed=[HealthCheck.too_slow])
def test_exactly_what_is_missing(case):
    holds(case)


@explored(30, 100, st.integers(0, 2**32))
def test_exactly_what_is_missing_or_unmatched(seed):
    holds(outer_schedule(random.Random(seed)))


def holds(case):
    optional = case["optional"]
    spec = spec_of(case["inputs"], optional)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spillfile, "ROW_GROUP_ROWS", case["group_rows"])
        place = folder(root)
        index = spill_all(place, spec, case["rows"], case["bits"], case["files"])
        ranges = [Prefix(case["depth"], v) for v in range(1 << case["depth"])]
        sizes = {"piece_bytes": case["piece_bytes"], "batch_bytes": case["batch_bytes"]}
        whole, _ = cleaned(spec, SpillSource(place, index, spec), ranges, **sizes)
        assert whole == brute_force(case["rows"], case["inputs"], optional)
        # Every range alone, with no more of the index than it needs, gives its own share.
        apart = Counter()
        for prefix in ranges:
            own, _ = cleaned(
                spec, SpillSource(place, index.within([prefix]), spec), [prefix], **sizes
            )
            inside = [
                r for r in case["rows"] if prefix.lo <= narrow(r[1], case["bits"]) < prefix.hi
            ]
            assert own == brute_force(inside, case["inputs"], optional)
            apart += own
        assert apart == whole
