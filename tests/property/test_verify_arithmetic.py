"""The test of one key against brute force: every tampered result set fails it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spillway.verify.arithmetic import PRIMES, exact_sum, judge, products, residue_product


def measure(
    keys: list[list[list[int]]], results: list[list[tuple[int, ...]]]
) -> tuple[Any, Any, Any, Any]:
    """Measures as Spark sums them. `keys[g][i]`: hashes of input i's rows; `results[g]`: hashes."""
    counts = np.array([[len(rows) for rows in key] for key in keys], dtype=np.int64).T
    sums = np.array(
        [[[sum(h % p for h in rows) for rows in key] for key in keys] for p in PRIMES],
        dtype=np.int64,
    ).transpose(0, 2, 1)
    found = np.array([len(rows) for rows in results], dtype=np.int64)
    found_sums = np.array(
        [
            [sum(math.prod(h % p for h in row) % p for row in rows) for rows in results]
            for p in PRIMES
        ],
        dtype=np.int64,
    )
    return counts, sums, found, found_sums


HASH = st.integers(-(2**63), 2**63 - 1)


@st.composite
def joined(draw: st.DrawFn) -> list[list[list[int]]]:
    m = draw(st.integers(2, 4))
    row = st.lists(HASH, max_size=4, unique=True)
    return draw(st.lists(st.lists(row, min_size=m, max_size=m), min_size=1, max_size=4))


def cross(keys: list[list[list[int]]]) -> list[list[tuple[int, ...]]]:
    return [list(itertools.product(*key)) for key in keys]


@given(joined())
def test_the_full_cross_product_passes(keys: list[list[list[int]]]) -> None:
    verdicts = judge(*measure(keys, cross(keys)))
    assert not verdicts.wrong.any()
    assert verdicts.expected.tolist() == [math.prod(len(rows) for rows in key) for key in keys]


@given(joined(), st.data())
def test_a_tampered_key_fails_and_no_other(
    keys: list[list[list[int]]], data: st.DataObject
) -> None:
    results = cross(keys)
    candidates = [g for g, rows in enumerate(results) if rows]
    if not candidates:
        return
    g = data.draw(st.sampled_from(candidates))
    at = data.draw(st.integers(0, len(results[g]) - 1))
    how = data.draw(st.sampled_from(["missing", "doubled", "altered", "swapped"]))
    row = results[g][at]
    if how == "missing":
        results[g].pop(at)
    elif how == "doubled":
        results[g].append(row)
    elif how == "altered":
        i = data.draw(st.integers(0, len(row) - 1))
        other = data.draw(HASH.filter(lambda h: all(h % p != row[i] % p for p in PRIMES)))
        results[g][at] = (*row[:i], other, *row[i + 1 :])
    else:  # one result in place of another: the count stays
        other_row = data.draw(st.sampled_from(results[g]))
        results[g][at] = other_row
        if other_row == row:
            return
    # A hash that is 0 modulo a prime hides what it is multiplied with: the other prime sees it.
    if any(all(h % p == 0 for p in PRIMES) for r in (*results[g], row) for h in r):
        return
    wrong = judge(*measure(keys, results)).wrong
    assert wrong.tolist() == [k == g for k in range(len(keys))]


def test_two_doublings_do_not_cancel() -> None:
    keys = [[[1, 2], [3, 4]]]
    for row in cross(keys)[0]:
        tampered = [[*cross(keys)[0], row, row]]
        assert judge(*measure(keys, tampered)).wrong.all()


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=1, max_size=3), min_size=2, max_size=4))
def test_products_are_exact_beyond_64_bits(rows: list[list[int]]) -> None:
    width = min(len(r) for r in rows)
    counts = np.array([r[:width] for r in rows], dtype=np.int64)
    assert products(counts).tolist() == [
        math.prod(c) for c in zip(*(r[:width] for r in rows), strict=True)
    ]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=5), st.sampled_from(PRIMES))
def test_residue_products_do_not_overflow(sums: list[int], prime: int) -> None:
    found = residue_product(np.array([[s] for s in sums], dtype=np.int64), prime)
    assert found.tolist() == [math.prod(sums) % prime]


def test_one_large_key_is_exact_beside_one_without_rows() -> None:
    assert products(np.array([[0, 2**32], [5, 2**32]])).tolist() == [0, 2**64]
    assert products(np.array([[2**40, 1], [2**40, 1]])).tolist() == [2**80, 1]
    assert exact_sum(products(np.array([[2**40, 1], [2**40, 1]]))) == 2**80 + 1
    assert exact_sum(np.full(8, 2**60)) == 2**63
    assert exact_sum(np.arange(5)) == 10


def test_a_count_is_compared_to_the_last_result() -> None:
    counts = np.array([[2**27 + 1] * 2, [2**27 - 1] * 2])
    found = np.array([2**54 - 1, 2**54])
    nothing = np.zeros((2, 2), np.int64)
    verdicts = judge(counts, np.zeros((2, 2, 2), np.int64), found, nothing)
    assert verdicts.expected.tolist() == [2**54 - 1] * 2
    assert verdicts.wrong.tolist() == [False, True], "no sum says so where hashes are 0"


def test_no_keys() -> None:
    empty = np.zeros((3, 0), np.int64)
    verdicts = judge(empty, np.zeros((2, 3, 0), np.int64), empty[0], np.zeros((2, 0), np.int64))
    assert (verdicts.expected.tolist(), exact_sum(verdicts.expected)) == ([], 0)
    assert verdicts.wrong.tolist() == []
