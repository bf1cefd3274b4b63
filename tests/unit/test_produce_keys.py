"""Keys: distinct symbols, Kafka's partitioner, and frequencies that are what the papers say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2 as reference_murmur2

from spillway.engine.join.hashing import xxhash64
from spillway.produce.keys import (
    Draws,
    Seed,
    as_strings,
    class_of_group,
    domain,
    murmur2,
    partitions_of,
    symbols,
)
from spillway_schemas.scenario import Distribution, KeyDomain, Keys


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_symbols_of_a_width_are_all_different(width):
    letters = symbols(0, 26**width, width)
    assert len(np.unique(letters, axis=0)) == 26**width
    with pytest.raises(ValueError, match="only"):
        symbols(1, 26**width, width)


@pytest.mark.parametrize("width", range(9))
def test_murmur2_is_kafkas(width):
    rng = np.random.default_rng(width)
    letters = rng.integers(0, 256, (50, width), dtype=np.uint8)
    wanted = [reference_murmur2(bytes(row)) & 0xFFFFFFFF for row in letters]
    assert murmur2(letters).tolist() == wanted


def test_partitions_of_mixed_keys_are_the_default_partitioners():
    keys = ["", "A", "BRK.B", None, "é", "x" * 1000, None]
    for column in (pa.array(keys), pa.array([k and k.encode() for k in keys]), pa.array(keys)[0:7]):
        got = partitions_of(column, 5).tolist()
        for row, (key, place) in enumerate(zip(keys, got, strict=True)):
            if key is None:
                assert place == row % 5
            else:
                assert place == (reference_murmur2(key.encode()) & 0x7FFFFFFF) % 5


CLASSED = Keys.model_validate(
    {
        "tuple_range": 12_000,
        "classes": [
            {"share": 1 / 3, "ratio": 4},
            {"share": 1 / 3, "ratio": 2},
            {"share": 1 / 3, "ratio": 1},
        ],
    }
)


@pytest.mark.parametrize("layout", ["spread", "contiguous"])
def test_a_class_is_a_set_of_groups_and_its_keys_lie_in_them(layout):
    keys = CLASSED.model_copy(update={"layout": layout})
    of_group = class_of_group(keys)
    assert np.bincount(of_group).tolist() == [171, 170, 171]
    if layout == "contiguous":
        assert (np.diff(of_group) >= 0).all()
    made = domain(keys)
    groups = (xxhash64([made.symbols]) >> np.uint64(55)).astype(int)
    ratio_of_class = np.array([4, 2, 1])
    assert (made.ratios == ratio_of_class[of_group[groups]]).all()
    assert np.bincount(made.ratios)[[4, 2, 1]].tolist() == [1000, 2000, 4000]


def test_classes_may_be_of_ids_and_of_any_number_of_groups():
    text = {
        "hashed": "id",
        "groups": 256,
        "tuple_range": 12_000,
        "classes": [{"share": 0.5, "ratio": 5}, {"share": 0.5, "ratio": 1}],
    }
    keys = KeyDomain.model_validate(text)
    made = domain(keys)
    of_group = class_of_group(keys)
    assert np.bincount(of_group).tolist() == [128, 128]
    for bits in (8, 9):
        # Groups of the engine's settings, as many or more: each has keys of one class.
        groups = (xxhash64([pa.array(made.ids)]) >> np.uint64(64 - bits)).astype(int)
        assert (made.ratios == np.array([5, 1])[of_group[groups >> (bits - 8)]]).all()
    assert len(np.unique(made.ids)) == len(made) == 1_200 + 6_000
    # A symbol goes with each id, as without classes.
    assert made.ids.min() >= 1
    plain = domain(KeyDomain(count=50))
    assert plain.ids.tolist() == list(range(1, 51))
    width = len(made.symbols[0].as_py())
    first = symbols(int(made.ids[0]) - 1, 1, width)
    assert made.symbols[0].as_py() == bytes(first[0]).decode()


def test_alternating_parts_may_be_of_ids():
    keys = Keys.model_validate(
        {"count": 400, "hashed": "id", "alternate": {"every_s": 1, "ranges": 2}}
    )
    made = domain(keys)
    assert (made.parts == (xxhash64([pa.array(made.ids)]) >> np.uint64(63)).astype(int)).all()


def test_a_key_of_ratio_r_appears_r_times_in_every_tuple_range():
    made = domain(CLASSED)
    draws = Draws(made, CLASSED, 0, Seed(1))
    total = int(made.ratios.sum())
    for cycle in range(3):
        counts = np.bincount(draws.take(cycle * total, total), minlength=len(made))
        assert (counts == made.ratios).all()
    assert (draws.take(0, total) != draws.take(total, total)).any()


@pytest.mark.parametrize(
    "dist",
    [
        Distribution(),
        Distribution(distribution="zipf", exponent=1.0),
        Distribution(distribution="b-model", bias=0.7),
        Distribution(distribution="tuple-range"),
    ],
)
def test_draws_depend_on_the_position_alone(dist):
    made = domain(Keys(count=1000))
    whole = Draws(made, dist, 0, Seed(5)).take(0, 200_000)
    other = Draws(made, dist, 0, Seed(5))
    pieces = [other.take(lo, hi - lo) for lo, hi in [(150_000, 200_000), (0, 7), (7, 150_000)]]
    assert (np.concatenate([pieces[1], pieces[2], pieces[0]]) == whole).all()
    assert (Draws(made, dist, 0, Seed(6)).take(0, 1000) != whole[:1000]).any()


def test_zipf_and_b_model_have_their_frequencies():
    made = domain(Keys(count=1024))
    n = 400_000
    zipf = Draws(made, Distribution(distribution="zipf", exponent=1.0), 0, Seed(1)).take(0, n)
    counts = np.bincount(zipf, minlength=1024)
    harmonic = (1 / np.arange(1, 1025)).sum()
    for rank in (1, 2, 10):
        assert counts[rank - 1] == pytest.approx(n / harmonic / rank, rel=0.05)
    b = Draws(made, Distribution(distribution="b-model", bias=0.7), 0, Seed(1)).take(0, n)
    for bit in range(10):
        assert ((b >> bit) & 1 == 0).mean() == pytest.approx(0.7, abs=0.01)


def test_alternating_parts_are_equal_hash_ranges():
    keys = Keys.model_validate({"count": 4000, "alternate": {"every_s": 1, "ranges": 4}})
    made = domain(keys)
    quarter = (xxhash64([made.symbols]) >> np.uint64(62)).astype(int)
    assert (made.parts == quarter).all()
    draws = Draws(made, keys, 2, Seed(1))
    assert set(made.parts[draws.take(0, 1000)]) == {2}


def test_strings_of_letters():
    assert as_strings(np.frombuffer(b"ABCDEF", np.uint8).reshape(2, 3)).to_pylist() == [
        "ABC",
        "DEF",
    ]
