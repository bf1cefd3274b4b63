"""Digests of raw values: whether Kafka gives today what it gave when the journal was written.

A value's digest is 64 bits: a chain over its 8-byte words, `h = mix((h ^ word) * M)`, begun with
its length. Each step is a bijection of `h` and of the word, so one changed word always changes
the digest, and unrelated values agree with probability 2**-64. It protects against topics that
were made anew and against damage, not against somebody who constructs a collision.

Words are read at unaligned addresses straight from the Arrow buffer, one word position of all
values at a time; the last word overlaps the one before it, so no byte behind a value is read.
Values over `LONG` bytes are hashed one by one with BLAKE2b, so that one 5 MB value does not
cost 600,000 vector steps.

A partition's digest is the sum modulo 2**64 of its values' digests, each mixed with its
offset: independent of the order and of how rows were batched. Golden vectors in the tests
keep the function as it is: journals hold its results.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from spillway.decode.layout import Layout

Words = npt.NDArray[np.uint64]

LONG = 1024
_M1 = np.uint64(0x9E3779B97F4A7C15)
_M2 = np.uint64(0xBF58476D1CE4E5B9)
_M3 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x5CA1AB1E0DDBA11D)
_CHUNK = 16_384
"""Values that are hashed together: their intermediate vectors stay in the cache."""


def value_digest(values: Any) -> Words:
    """64-bit digest of every value of a pyarrow binary or large_binary array, uint64 (n,)."""
    digests = np.empty(len(values), np.uint64)
    for begin in range(0, len(values), _CHUNK):
        layout = Layout.of(values.slice(begin, _CHUNK))
        digests[begin : begin + layout.rows] = _digest(layout)
    return digests


def partition_digest(digests: Words, offsets: npt.NDArray[np.int64]) -> int:
    """Sum modulo 2**64 over one topic partition; add the sums of several batches up.

    `digests` are those of `value_digest`, `offsets` the values' offsets, both (n,).
    """
    place = _mix(offsets.astype(np.int64).view(np.uint64) * _M1 + _M2)
    return int(_mix(digests ^ place).sum(dtype=np.uint64))


def _digest(layout: Layout) -> Words:
    lengths = layout.ends - layout.starts
    digest = lengths.astype(np.uint64) * _M1 + _M3
    short = layout.valid & (lengths < 8)
    long = layout.valid & (lengths > LONG)
    middle = layout.valid & ~short & ~long
    if middle.any():
        _chain(digest, layout, np.flatnonzero(middle), lengths)
    if short.any():
        rows = np.flatnonzero(short)
        word = np.zeros(len(rows), np.uint64)
        for at in range(7):
            has = lengths[rows] > at
            byte = layout.data[layout.starts[rows[has]] + at].astype(np.uint64)
            word[has] |= byte << np.uint64(8 * at)
        digest[rows] = _step(digest[rows], word)
    digest = _mix(digest)
    for row in np.flatnonzero(long):
        value = layout.data[layout.starts[row] : layout.ends[row]]
        code = hashlib.blake2b(value.tobytes(), digest_size=8).digest()
        digest[row] = int.from_bytes(code, "little")
    digest[~layout.valid] = _NULL
    return digest


def _chain(
    digest: Words, layout: Layout, rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> None:
    """Values of 8 bytes and more: full words from the left, then the last 8 bytes."""
    # A word at every byte address: reading is a plain gather, whatever the alignment.
    words: Words = np.ndarray((len(layout.data) - 7,), np.dtype("<u8"), layout.data, strides=(1,))
    whole = (lengths[rows] - 1) >> 3
    if whole.min() != whole.max():
        order = np.argsort(-whole, kind="stable")
        rows, whole = rows[order], whole[order]
    starts, state = layout.starts[rows], digest[rows]
    most = int(whole[0])
    # rows are sorted by falling number of words: at each position a prefix takes part
    counts = np.searchsorted(-whole, -np.arange(most), side="left")
    for position, count in enumerate(counts.tolist()):
        part = state[:count]
        part ^= words[starts[:count] + 8 * position]
        part *= _M1
        part ^= part >> np.uint64(32)
    digest[rows] = _step(state, words[layout.ends[rows] - 8])


def _step(state: Words, word: Words) -> Words:
    state = (state ^ word) * _M1
    return state ^ (state >> np.uint64(32))


def _mix(x: Words) -> Words:
    """The finalizer of splitmix64: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * _M2
    x = (x ^ (x >> np.uint64(27))) * _M3
    return x ^ (x >> np.uint64(31))
