"""Keys: the domain of symbols, how often each appears, and the topic partition it goes to.

Model: a domain is an array of keys, each with a symbol (named, or of letters) and an id, its number
from 1 on. With classes (tuple range K, range join ratio R) every partition group belongs to one
class, and a class's keys are the first of an endless series whose hash falls into its groups: so a
class is a set of groups as in the papers, and its productivity differs from its size. With
`alternate` the hash range is cut into equal parts of which one at a time is busy.

`Draws` say which key comes next, for one stream and one part of the hash range. Draws are
a function of (seed, position) alone: position p of a sequence is the same key whoever asks, and
in whatever pieces it is asked for.

Everything here is numpy over whole arrays; nothing knows Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.join.hashing import xxhash64
from spillway_schemas.scenario import Distribution, KeyDomain, Keys

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

BLOCK = 65_536
"""Draws of an independent sequence are made in blocks of so many, each with its own seed."""
_SCRAMBLE = 2_654_435_761
"""The golden ratio of 2^32, as a multiplier; see `symbols`."""


def symbols(first: int, count: int, width: int) -> U8:
    """Symbols `first`, `first + 1`, ... as uint8 (count, width) letters; all are different.

    Number i becomes (i x a) mod 26^width in base 26 with a coprime to 26, so neighbours look
    unalike. Raises ValueError beyond 26^width.
    """
    return _symbols_of(np.arange(first, first + count, dtype=np.int64), width)


def _symbols_of(wanted: I64, width: int) -> U8:
    """The symbols of these numbers, int64 (n,) ascending."""
    space = 26**width
    if len(wanted) and wanted[-1] >= space:
        raise ValueError(f"there are only {space} symbols of {width} letters")
    count = len(wanted)
    multiplier = _SCRAMBLE % space
    while multiplier % 2 == 0 or multiplier % 13 == 0:
        multiplier += 1
    # Both factors lie below 26^6 < 2^29, so the product fits 63 bits.
    numbers = (wanted * multiplier) % space
    letters = np.empty((count, width), dtype=np.uint8)
    for position in range(width - 1, -1, -1):
        numbers, digit = np.divmod(numbers, 26)
        letters[:, position] = digit + ord("A")
    return letters


def as_strings(letters: U8) -> pa.Array:
    """Arrow strings of uint8 (n, width) letters, without a copy of the letters."""
    count, width = letters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))
    )


def murmur2(letters: U8) -> npt.NDArray[np.uint32]:
    """Kafka's murmur2 of keys of equal length, as every client partitions: uint32 (n,)."""
    count, width = letters.shape
    m = np.uint32(0x5BD1E995)
    h = np.full(count, np.uint32(0x9747B28C) ^ np.uint32(width), dtype=np.uint32)
    whole = width // 4 * 4
    words = np.ascontiguousarray(letters[:, :whole]).view("<u4")
    with np.errstate(over="ignore"):
        for position in range(words.shape[1]):
            k = words[:, position] * m
            k ^= k >> np.uint32(24)
            h = (h * m) ^ (k * m)
        rest = letters[:, whole:]
        for position in range(rest.shape[1] - 1, -1, -1):
            h ^= rest[:, position].astype(np.uint32) << np.uint32(8 * position)
        if rest.shape[1]:
            h *= m
        h ^= h >> np.uint32(13)
        h *= m
        h ^= h >> np.uint32(15)
    return h


def partitions_of(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """The topic partition that Kafka's default partitioner gives each key: int32 (n,).

    `keys`: Arrow strings or binaries (n,). A null key goes to partition (row modulo partitions):
    clients spread such records, and this way it is the same every time.
    """
    found = (np.arange(len(keys)) % partitions).astype(np.int32)
    lengths = np.asarray(pc.fill_null(pc.binary_length(keys), -1).to_numpy(zero_copy_only=False))
    for width in np.unique(lengths).tolist():
        if width < 0:
            continue
        rows = np.flatnonzero(lengths == width)
        # A copy of these rows alone, so that their bytes lie side by side from 0 on.
        chosen = pc.cast(keys.take(pa.array(rows)), pa.large_binary())
        body = chosen.buffers()[2]
        letters = np.frombuffer(body or b"", dtype=np.uint8)[: width * len(rows)]
        positive = murmur2(letters.reshape(len(rows), width)) & np.uint32(0x7FFFFFFF)
        found[rows] = (positive % np.uint32(partitions)).astype(np.int32)
    return found


@dataclass(frozen=True)
class Domain:
    """All keys of a scenario."""

    symbols: pa.Array
    """Arrow strings (n,)."""
    ratios: I64
    """Range join ratio of each key, int64 (n,); 1 where the scenario has no classes."""
    parts: I64
    """Which part of the hash range each key lies in, int64 (n,); 0 without `alternate`."""
    ids: I64
    """Each key's number, int64 (n,): from 1 on, but for gaps where there are classes."""

    def __len__(self) -> int:
        return len(self.symbols)


def domain(keys: KeyDomain) -> Domain:
    """A domain of a scenario; a function of it alone (the seed does not matter)."""
    if keys.classes:
        numbers, names, ratios = _classed(keys)
    else:
        count = keys.count or len(keys.names)
        numbers = np.arange(count, dtype=np.int64)
        names = pa.array(keys.names) if keys.names else as_strings(symbols(0, count, _width(count)))
        ratios = np.ones(count, dtype=np.int64)
    made = Domain(names, ratios, np.zeros(len(names), dtype=np.int64), numbers + 1)
    if isinstance(keys, Keys) and keys.alternate is not None:
        # The top 16 bits are plenty to tell at most 64 parts apart.
        hashed = names if keys.hashed == "symbol" else pa.array(made.ids)
        top = (xxhash64([hashed]) >> np.uint64(48)).astype(np.int64)
        return replace(made, parts=top * keys.alternate.ranges >> 16)
    return made


def _width(count: int) -> int:
    width = 4
    while 26**width < count:
        width += 1
    return width


def class_of_group(keys: KeyDomain) -> I64:
    """The class of each partition group: int64 (groups,)."""
    edges = np.cumsum([c.share for c in keys.classes])
    rank = np.arange(keys.groups)
    if keys.layout == "spread":
        # A fixed permutation: multiplying by an odd number modulo a power of two.
        rank = rank * 197 % keys.groups
    found = np.searchsorted(edges, (rank + 0.5) / keys.groups * edges[-1], side="left")
    return np.asarray(np.minimum(found, len(keys.classes) - 1), dtype=np.int64)


def _classed(keys: KeyDomain) -> tuple[I64, pa.Array, I64]:
    """Numbers, symbols and ratios of the keys, those of the first class first."""
    wanted = keys.class_keys()
    of_group = class_of_group(keys)
    taken: list[list[I64]] = [[] for _ in wanted]
    left = list(wanted)
    width = _width(8 * sum(wanted))
    first = 0
    while any(left):
        numbers = np.arange(first, min(first + 262_144, 26**width), dtype=np.int64)
        first += len(numbers)
        if keys.hashed == "symbol":
            hashes = xxhash64([as_strings(_symbols_of(numbers, width))])
        else:
            hashes = xxhash64([pa.array(numbers + 1)])
        # The top bits as a number; 16 of them are the most that a domain may have groups for.
        groups = (hashes >> np.uint64(48)).astype(np.int64) * keys.groups >> 16
        classes = of_group[groups]
        for number, missing in enumerate(left):
            if missing:
                chosen = numbers[classes == number][:missing]
                taken[number].append(chosen)
                left[number] -= len(chosen)
    of_class = [np.concatenate(pieces) for pieces in taken]
    letters = np.concatenate([_symbols_of(each, width) for each in of_class])
    ratios = np.repeat([c.ratio for c in keys.classes], wanted).astype(np.int64)
    return np.concatenate(of_class), as_strings(letters), ratios


# ------------------------------------------------------------------------------ which key next


class Draws:
    """Which key comes at which position, for one stream and one part of the hash range."""

    def __init__(self, domain_: Domain, dist: Distribution, part: int, seed: Seed):
        self._members = np.flatnonzero(domain_.parts == part)
        if not len(self._members):
            raise ValueError(
                f"no key lies in part {part} of the hash range: use more keys or fewer ranges"
            )
        self._seed = seed.child(part)
        self._cycle: I64 | None = None
        self._cdf: F64 | None = None
        self._last: tuple[int, I64] | None = None
        if dist.distribution == "tuple-range":
            self._cycle = np.repeat(self._members, domain_.ratios[self._members])
        elif dist.distribution != "uniform":
            weights = _weights(len(domain_), dist)[self._members]
            self._cdf = np.cumsum(weights) / weights.sum()

    def take(self, first: int, count: int) -> I64:
        """Keys (numbers in the domain) at positions `first` ... `first + count - 1`."""
        size = BLOCK if self._cycle is None else len(self._cycle)
        pieces = []
        while count > 0:
            block, offset = divmod(first, size)
            use = min(count, size - offset)
            if self._last is None or self._last[0] != block:
                self._last = block, self._block(block)
            pieces.append(self._last[1][offset : offset + use])
            first += use
            count -= use
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _block(self, number: int) -> I64:
        rng = self._seed.rng(number)
        if self._cycle is not None:
            # Every key exactly R times in these K rows, in another order each time.
            return np.asarray(rng.permutation(self._cycle))
        if self._cdf is not None:
            found = np.searchsorted(self._cdf, rng.random(BLOCK), side="right")
            return np.asarray(self._members[np.minimum(found, len(self._members) - 1)])
        return np.asarray(self._members[rng.integers(0, len(self._members), BLOCK)])


def _weights(count: int, dist: Distribution) -> F64:
    """Relative frequency of every key of a domain of `count`: float64 (count,).

    The key's number is its rank; symbols are scrambled, so rank says nothing about the hash.
    """
    if dist.distribution == "zipf":
        ranks = np.arange(1, count + 1, dtype=np.float64)
        return np.asarray(ranks**-dist.exponent)
    # b-model: every halving gives one half `bias` of the mass. A key's weight follows from how
    # many of its number's bits are set; the domain is cut off at `count`.
    levels = max(1, (count - 1).bit_length())
    numbers = np.arange(count, dtype=np.int64)
    ones = np.zeros(count, dtype=np.int64)
    for level in range(levels):
        ones += (numbers >> level) & 1
    return np.asarray(dist.bias ** (levels - ones) * (1 - dist.bias) ** ones)


# ---------------------------------------------------------------------------------------- seeds


@dataclass(frozen=True)
class Seed:
    """A place in the tree of random numbers: a seed and the way down to this place."""

    root: int
    path: tuple[int, ...] = ()

    def child(self, *steps: int) -> Seed:
        """The place further down."""
        return Seed(self.root, self.path + steps)

    def rng(self, *steps: int) -> Any:
        """A numpy generator for this place (or one further down)."""
        sequence = np.random.SeedSequence(self.root, spawn_key=self.path + steps)
        return np.random.Generator(np.random.PCG64(sequence))
