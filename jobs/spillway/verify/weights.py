"""The number of each row, for many rows at once: what sums of weights are made of. No Spark.

A row's number is a hash of 64 bits, salted afresh for each run, of its coordinate, of the payload
columns that results carry, and of which of them are null. Each column is a word of 64 bits a row:
what fits into 64 bits as it is, everything else by a keyed hash of polars'. Each word is combined
with one of its column, that follows from the salt, and mixed (the end of splitmix64). What comes
out is summed with odd multipliers, and mixed again. Mixing first matters: words that differ often
have equal low bits (a sign, round numbers that change places), and such differences would cancel in
the sum, whatever the multipliers. The proof needs the number modulo two primes (`arithmetic`).

The engine has nothing of this: it hashes keys alone, with another function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from spillway.verify.arithmetic import PRIMES

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Column = Any
"""An Arrow array, in chunks or not."""


class RowHash:
    """Hashes of rows of several columns, salted. `of`: what the rows are, so that rows of different
    kinds have different numbers."""

    def __init__(self, salt: int, of: int, columns: int) -> None:
        draw = np.random.default_rng([salt, of])
        words = draw.integers(0, 1 << 64, size=(3, columns), dtype=np.uint64)
        self._factors: U64 = words[0] | np.uint64(1)
        self._nulls: U64 = words[1]
        self._secrets: U64 = words[2]
        self._seed = int(draw.integers(0, 1 << 63))

    def words(self, columns: Sequence[Column]) -> U64:
        """Of n rows, uint64 (n,)."""
        summed: U64 = np.zeros(len(columns[0]), dtype=np.uint64)
        for at, column in enumerate(columns):
            summed += mixed(self._words(column, at) ^ self._secrets[at]) * self._factors[at]
        return mixed(summed)

    def _words(self, column: Column, at: int) -> U64:
        found = words_of(column, self._seed)
        if column.null_count:
            found = np.where(_are_null(column), self._nulls[at], found)
        return found


class Weigher:
    """The numbers of one input's rows, modulo both primes. `columns`: how many the payload has."""

    def __init__(self, salt: int, input_: int, columns: int) -> None:
        self._hash = RowHash(salt, input_, columns + 2)

    def residues(
        self, partition: Column, offset: Column, payload: Sequence[Column]
    ) -> tuple[I64, I64]:
        """Of n rows, int64 (n,) both."""
        return residues_of(self._hash.words([partition, offset, *payload]))


def words_of(column: Column, seed: int) -> U64:
    """A word for each value, uint64 (n,): equal for equal values. Of nulls anything."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    found: U64
    if pa.types.is_dictionary(kind):
        found = words_of(column.dictionary, seed)
        at = column.indices.fill_null(0).to_numpy()
        return found[at] if len(found) else np.zeros(len(at), dtype=np.uint64)
    if pa.types.is_floating(kind):
        numbers = column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        # One zero and one NaN: what is equal has one word.
        found = np.where(np.isnan(numbers), np.nan, numbers + 0.0).view(np.uint64)
        return found
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    if pa.types.is_integer(column.type):
        whole = column.fill_null(0).to_numpy(zero_copy_only=False)
        found = whole.astype(np.int64).view(np.uint64)
        return found
    found = pl.Series(values=pl.from_arrow(column)).hash(seed).to_numpy()
    return found


def _are_null(column: Column) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def mixed(words: U64) -> U64:
    """Each word by a permutation of all words in which every bit depends on every other."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def residues_of(words: U64) -> tuple[I64, I64]:
    """Words modulo both primes, int64 (n,) each."""
    first, second = (words % np.uint64(prime) for prime in PRIMES)
    return first.astype(np.int64), second.astype(np.int64)
