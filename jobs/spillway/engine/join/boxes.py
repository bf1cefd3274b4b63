"""Results as boxes: the combinations of a key, cut into plain cross products.

Model: in input i a key has `old[i]` old rows (ranks 0 .. old-1) and `new[i]` new ones (ranks
old .. old+new-1). "At least one new row" is a disjoint union of m boxes, by the first input
that gives a new row: old_0 x ... x old_(j-1) x new_j x all_(j+1) x ... x all_(m-1). "And at
least one old row" leaves box j > 0 as it is and splits box 0 by the first old row:
new_0 x ... x new_(t-1) x old_t x all_(t+1) x ... Where only the first of the old rows are *proper*,
and one of these is asked for, each box j is split by the first input that gives a proper one.

A box is a range of ranks in each input. Its results are numbered in mixed radix, so any part
of it can be made without the rest: a hot key's product is never materialised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spillway.engine.groups import I64

MOST_RESULTS = 1 << 62
"""More results of one key than this cannot be counted (nor written)."""


@dataclass(frozen=True)
class Boxes:
    """b boxes over m inputs: `key` (b,), `start` (m, b) ranks, `length` (m, b), `size` (b,)."""

    key: I64
    start: I64
    length: I64
    size: I64

    def of(self, index: I64 | slice) -> Boxes:
        """Some of the boxes."""
        return Boxes(self.key[index], self.start[:, index], self.length[:, index], self.size[index])

    def ranks(self) -> tuple[I64, list[I64]]:
        """(box of each result, rank in each input of each result), results in box order."""
        total = int(self.size.sum())
        if total == len(self.key):  # every box gives one result
            return np.arange(total), [self.start[i] for i in range(len(self.start))]
        box = np.repeat(np.arange(len(self.key)), self.size)
        within = np.arange(total) - np.repeat(np.cumsum(self.size) - self.size, self.size)
        ranks: list[I64] = []
        for start, length in zip(self.start[::-1], self.length[::-1], strict=True):
            if int(length.max(initial=1)) == 1:
                ranks.append(start[box])
                continue
            radix = length[box]
            within, digit = np.divmod(within, radix)
            ranks.append(start[box] + digit)
        return box, ranks[::-1]


def boxes_of(
    old: Sequence[I64], new: Sequence[I64], *, need_old: bool, proper: Sequence[I64] | None = None
) -> Boxes:
    """All boxes that hold a result, by key. `old[i]`, `new[i]` are rows of input i per key (k,).

    `proper[i]`: how many of the old rows, the first ones, `need_old` asks for; all when not given.
    Raises OverflowError when one key would give more than `MOST_RESULTS` results.
    """
    m = len(old)
    parts = {
        "old": [(np.zeros_like(o), o) for o in old],
        "new": [(o, n) for o, n in zip(old, new, strict=True)],
        "all": [(np.zeros_like(o), o + n) for o, n in zip(old, new, strict=True)],
    }
    shapes = [["old"] * j + ["new"] + ["all"] * (m - j - 1) for j in range(m)]
    if need_old and proper is None:
        shapes[:1] = [["new"] * t + ["old"] + ["all"] * (m - t - 1) for t in range(1, m)]
    elif need_old and proper is not None:
        parts["proper"] = [(np.zeros_like(p), p) for p in proper]
        parts["old but proper"] = [(p, o - p) for p, o in zip(proper, old, strict=True)]
        parts["all but proper"] = [(p, o + n - p) for p, o, n in zip(proper, old, new, strict=True)]
        shapes = [
            [
                whole if i > t or i == j else "proper" if i == t else f"{whole} but proper"
                for i, whole in enumerate(shape)
            ]
            for j, shape in enumerate(shapes)
            for t in range(m)
            if t != j
        ]
    found = []
    for shape in shapes:
        length = np.stack([parts[what][i][1] for i, what in enumerate(shape)])
        if float(np.prod(length, axis=0, dtype=np.float64).max(initial=0)) > MOST_RESULTS:
            raise OverflowError("one key would give more than 4e18 results: use a finer join key")
        size = np.prod(length, axis=0)
        key = np.flatnonzero(size)
        start = np.stack([parts[what][i][0][key] for i, what in enumerate(shape)])
        found.append(Boxes(key, start, length[:, key], size[key]))
    order = np.argsort(np.concatenate([b.key for b in found]), kind="stable")
    return Boxes(
        np.concatenate([b.key for b in found])[order],
        np.concatenate([b.start for b in found], axis=1)[:, order],
        np.concatenate([b.length for b in found], axis=1)[:, order],
        np.concatenate([b.size for b in found])[order],
    )


def pieces(start: Sequence[int], length: Sequence[int], limit: int) -> Iterator[Boxes]:
    """Cut one box into boxes of at most `limit` (>= 1) results, along its longest sides first."""
    size = int(np.prod([int(n) for n in length], dtype=object))
    if size <= limit:
        yield Boxes(
            np.zeros(1, np.int64),
            np.array(start, np.int64)[:, None],
            np.array(length, np.int64)[:, None],
            np.array([size], np.int64),
        )
        return
    side = int(np.argmax(length))
    step = max(1, limit // (size // length[side]))
    for at in range(0, length[side], step):
        begin, count = list(start), list(length)
        begin[side] += at
        count[side] = min(step, length[side] - at)
        yield from pieces(begin, count, limit)
