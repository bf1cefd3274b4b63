"""Which spilled generations come back to memory. Pure: statistics in, groups out.

TR-05-04 (4.1, 4.2) and SIGMOD 2006 (4.1) allow the merge as soon as there is memory for it; neither
says which group is first. Here the newest generation of a
group comes back when it is worth its room: what is expected to be gained for each byte
(`spillway.policy.expected`) exceeds `MARGIN` times what the groups lose that must leave for it, so
small errors of the estimates move little. The bytes are those that stay in memory: what has left
its window since gives results, and does not stay. So an old generation of a windowed join costs
little memory; it has to be read, so `LEAST_KEPT` of it counts at the least. Part of the gain comes
at once, with the merge. What is left of a silent group then loses little, and it may leave again
soon.

An older generation has to wait for those that were spilled since. So the newest is worth what the
best run of generations from it on gains for each byte: else a small one that came last would keep a
large one away (`worth_of`). A run ends before one that can never come back (`may_ever`), and after
one of which rows have expired: once they leave, what is older is forgotten
(`spillway.engine.state.kept`).

| policy | comes back |
|---|---|
| `expected-gain` | (default) what gains most for each byte first, while it is worth its room |
| `rotation` | what was spilled longest ago first, whatever it is worth: spilled groups take turns |
| `random` | about half of all, drawn with the seed, whatever it is worth: for tests |
| `off` | nothing |

`rotation` is after Flux's local policy (UCB/CSD-2-1205, section 6.1): there, each t_gap, the first
group of a queue in memory leaves for the first of a queue on disk. Here the one that was spilled
longest ago comes back, and who leaves goes by the order of victims. There the input of such groups
waits on disk, and this is how it is processed; here it is joined in the group's next generation,
and what waits are the results between the two. A turn begins with each spill, so t_gap is the time
between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

POLICIES = ("expected-gain", "rotation", "random", "off")
DEFAULT_REACTIVATION = "expected-gain"
MARGIN = 1.2
LEAST_KEPT = 1 / 16
"""Of a generation that comes back, so much counts as kept at the least."""
MOST_READ_BYTES = 32 << 20
"""State that comes back in one epoch, at most: it is read, joined and stored at once, whatever the
budget."""
MOST_RESULTS = 500_000.0
"""What comes back gives no more in one epoch: about a second's work. Else an epoch near the close
might do a good part of cleanup."""


@dataclass(frozen=True)
class Residents:
    """What each group has in memory, all (g,)."""

    bytes: I64
    loss: F64
    """Results that it gives up when it is spilled now."""
    leaving: Bool
    """It is spilled in any case."""


@dataclass(frozen=True)
class Candidates:
    """What each group may bring back, all (g,)."""

    bytes: I64
    """To be read; 0: nothing."""
    stays: F64
    """Bytes of them that stay in memory."""
    worth: F64
    """Of each of these bytes, in results: see `worth_of`."""
    at_once: F64
    """Results that it gives in the epoch in which it comes back."""
    at_ms: I64
    """When it was spilled, on the stream's clock."""


def may_ever(sizes: I64, at_once: F64) -> Bool:
    """Whether generations of these bytes, that give so many results at once, ever come back; (g,)
    all."""
    return (sizes <= MOST_READ_BYTES) & (at_once <= MOST_RESULTS)


def worth_of(gains: Sequence[F64], sizes: Sequence[I64], stays: Sequence[F64]) -> F64:
    """What each byte of the newest generations that stays is worth, in results, float64 (g,).

    Of each generation, newest first, all (g,): what it gains once those after it are back, its
    bytes, and how many of them stay.
    """
    gained, room = np.zeros(len(gains[0])), np.zeros(len(gains[0]))
    best: F64 = np.zeros(len(gains[0]))
    for gain, size, left in zip(gains, sizes, stays, strict=True):
        gained += gain
        room += np.maximum(left, LEAST_KEPT * size)
        np.maximum(best, gained / np.maximum(room, 1.0), out=best)
    return best


def returning(
    policy: str,
    residents: Residents,
    candidates: Candidates,
    *,
    most_bytes: int,
    most_read_bytes: int,
    most_results: float = MOST_RESULTS,
    spare_bytes: int = 0,
    seed: int = 0,
) -> Bool:
    """Groups whose newest spilled generation comes back, bool (g,).

    Of them stay `most_bytes` together at the most, where `LEAST_KEPT` of each counts; nor are more
    than `most_read_bytes` read, or `most_results` given at once. `spare_bytes`: memory that nobody
    is expected to ask for until the session ends. Raises ValueError: unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}")
    found: Bool = np.zeros(len(candidates.bytes), dtype=np.bool_)
    size = candidates.bytes
    stays = np.maximum(candidates.stays, LEAST_KEPT * size)
    able = np.flatnonzero((size > 0) & ~residents.leaving)
    able = able[(stays[able] <= most_bytes) & (size[able] <= most_read_bytes)]
    if policy == "off" or not len(able):
        return found
    if policy == "random":
        able = able[np.random.default_rng((seed, 1)).random(len(able)) < 0.5]
        fits = (np.cumsum(stays[able]) <= most_bytes) & (np.cumsum(size[able]) <= most_read_bytes)
        found[able[fits]] = True
        return found
    if policy == "rotation":
        able = able[candidates.at_once[able] <= most_results]  # else it is in the way for good
        able = able[np.argsort(candidates.at_ms[able], kind="stable")]
        fits = (np.cumsum(stays[able]) <= most_bytes) & (np.cumsum(size[able]) <= most_read_bytes)
        fits &= np.cumsum(candidates.at_once[able]) <= most_results
        found[able[fits]] = True
        return found
    value = candidates.worth[able]
    order = np.argsort(-value, kind="stable")
    price = Prices(residents)
    read, taken, given = 0, 0.0, 0.0
    for group, worth in zip(able[order].tolist(), value[order].tolist(), strict=True):
        least = MARGIN * price.of(taken + 1 - spare_bytes)
        if worth <= max(least, 0.0):
            break  # nor are those after it worth more
        more, reads = taken + float(stays[group]), read + int(size[group])
        results = given + float(candidates.at_once[group])
        if more > most_bytes or reads > most_read_bytes or results > most_results:
            continue
        if worth > MARGIN * price.of(more - spare_bytes):
            found[group] = True
            read, taken, given = reads, more, results
    return found


class Prices:
    """What the dearest byte costs of those residents that leave for so many bytes."""

    def __init__(self, residents: Residents) -> None:
        stays = np.flatnonzero((residents.bytes > 0) & ~residents.leaving)
        each = residents.loss[stays] / residents.bytes[stays]
        order = np.argsort(each, kind="stable")
        self._upto = np.cumsum(residents.bytes[stays][order])
        self._each = np.append(each[order], np.inf)

    def of(self, needed: float) -> float:
        """The price; infinite: there are not so many bytes."""
        if needed <= 0:
            return 0.0
        return float(self._each[int(np.searchsorted(self._upto, needed))])
