"""The test of one key, for many keys at once. Pure (numpy).

Every input row gets a hash h, salted afresh for each run, modulo two primes. For one key let
N_i be the number of rows of input i and H_i the sum of their hashes. The results of the key are
the cross product of its rows, so

    number of results                             =  N_1 x ... x N_m       (exactly)
    sum over results of the product of its rows'
    hashes                                        =  H_1 x ... x H_m       (modulo each prime)

because a product of sums is the sum over all combinations. A result that is missing, doubled or
altered changes the left side; that both sides agree all the same has a chance of at most
m^2 / (PRIMES[0] x PRIMES[1]) = m^2 / 2^62 for a salt that nobody knew beforehand (`docs/proof.md`).
Sums, not xor: two doublings of one row would cancel.

Residues are below 2^31, so a product of two fits into uint64, and a bigint sum of them is exact
for up to 2^32 rows of one key.

Of an outer join, an optional input that has no row of a key counts as one row, whose hash is that
of a row of nulls, where the required inputs have rows of the key (`with_absent`).

Of a tree of joins, `fold` gives the right sides. There numbers of results are residues as well, and
a double that is right to some 9 digits: below `CERTAIN` the two residues name one number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PRIMES = (2**31 - 1, 2**31 - 19)

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CERTAIN = 2.0**61
"""Numbers of results up to this follow from their residues: the primes' product is almost 2^62, and
no table has so many rows."""

_EXACT = 2.0**62
"""Products up to this are computed in int64, larger ones as Python's integers."""


@dataclass(frozen=True)
class Verdicts:
    """What the test says of g keys."""

    expected: npt.NDArray[np.object_] | I64
    """How many results each key should have (g,): int64, or Python integers where one is larger."""
    wrong: Mask
    """Keys that fail the test (g,)."""


def judge(counts: I64, sums: I64, found: I64, found_sums: I64) -> Verdicts:
    """Test g keys of an m-way join.

    `counts` (m, g): rows of each input; `sums` (2, m, g): sums of their residues by each prime;
    `found` (g,): results; `found_sums` (2, g): sums over results of the products of their rows'
    residues. All int64; sums may be reduced or not.
    """
    expected = products(counts)
    wrong = np.array(expected != found, dtype=np.bool_)
    for prime, of_inputs, of_results in zip(PRIMES, sums, found_sums, strict=True):
        wrong |= residue_product(of_inputs, prime) != of_results % prime
    return Verdicts(expected, wrong)


def with_absent(counts: I64, sums: I64, optional: Mask, absent: I64) -> tuple[I64, I64, Mask]:
    """Counts and sums of g keys (as for `judge`), with a row of nulls in the place of optional
    inputs that have none; and which keys give results so, bool (g,).

    `optional` (m,): which inputs are; `absent` (2, m): the residues of a row of nulls of each.
    """
    lacks = (counts == 0) & optional[:, None]
    unmatched: Mask = (
        lacks.any(axis=0) & (counts > 0).any(axis=0) & ((counts > 0) | lacks).all(axis=0)
    )
    lacks &= unmatched
    return counts + lacks, np.where(lacks, absent[:, :, None], sums), unmatched


def judge_folded(
    counts: I64, roughly: npt.NDArray[np.float64], sums: I64, found: I64, found_sums: I64
) -> Verdicts:
    """Test g keys of a tree's root.

    `counts` (2, g): how many results there should be, modulo each prime; `roughly` (g,): the same
    as doubles; `sums` (2, g): their weights' sums; `found` (g,): results; `found_sums` (2, g):
    their weights' sums, not reduced.
    """
    wrong = ~(roughly < CERTAIN)
    for i, prime in enumerate(PRIMES):
        wrong |= counts[i] != found % prime
        wrong |= sums[i] != found_sums[i] % prime
    return Verdicts(named_by(counts, roughly), wrong)


def named_by(residues: I64, roughly: npt.NDArray[np.float64]) -> npt.NDArray[np.object_]:
    """The numbers of these residues (2, g); one of `CERTAIN` or more as roughly as it is known."""
    first, second = PRIMES
    more = (residues[1] - residues[0]) % second * pow(first, -1, second) % second
    named = (residues[0] + first * more).astype(object)
    large = ~(roughly < CERTAIN)
    named[large] = [int(each) for each in roughly[large].tolist()]
    return np.asarray(named, dtype=object)


def products(counts: I64) -> npt.NDArray[np.object_] | I64:
    """Products over the first axis of (m, g) counts, exact whatever their size."""
    if not counts.shape[1]:
        return np.zeros(0, dtype=np.int64)
    if counts.astype(np.float64).prod(axis=0).max() < _EXACT:
        return np.asarray(counts.prod(axis=0), dtype=np.int64)
    return np.asarray(counts.astype(object).prod(axis=0), dtype=object)


def exact_sum(numbers: npt.NDArray[np.object_] | I64) -> int:
    """The sum of non-negative numbers, whatever its size."""
    if numbers.dtype != object and float(numbers.sum(dtype=np.float64)) < _EXACT:
        return int(numbers.sum())
    return sum(numbers.tolist())


def residue_product(sums: I64, prime: int) -> I64:
    """Products over the first axis of (m, g) non-negative numbers modulo a prime below 2^31."""
    result = np.ones(sums.shape[1], dtype=np.int64)
    for row in sums:
        result = result * (row % prime) % prime
    return result
