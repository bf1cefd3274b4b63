"""How many rows an epoch may take, so that its intake fits into what the threshold leaves free.

A slot spills when its state has passed the threshold, after inserting the epoch's rows. What
lies above the threshold is shared by the intake, by dead rows that wait in their files
(`Shape.dead_in_budget`) and by rewriting these, so an epoch may bring at most `INTAKE_SHARE` of it
to any slot.

How much that is. After a spill of the fraction k of the state, each file is dead to the share k at
worst. Rewriting needs room R for the live part of files and gives back 1 / (1 - k) times as much
one epoch later, less the intake i that came meanwhile: R' = (R - i) / (1 - k). R grows when
i < k R, and a slot that passes its threshold by an intake has R = H - i left of the headroom H. So
i < H k / (1 + k): 0.23 H for k = 0.3. Smaller spills do better than that, for they take whole
groups, and groups lie in few files, as long as each takes what some epochs bring and some files
hold (`spillway.engine.spill.spilling`). With more, files of dead rows take room that state could
have: slots spill below the threshold to have room for rewriting (`spillway.engine.upkeep`).

Below `SMALL_BUDGET_BYTES`, and where the headroom is less than `SMALL_HEADROOM` of the budget, the
share is `SMALL_INTAKE_SHARE`: files have their least size there, or what is set aside for the
manifest and for rewriting takes a larger part of the headroom. Both shares are measured: larger
epochs cost results, smaller ones CPU time (decision 15).

`rows = INTAKE_SHARE * (1 - threshold) * budget / (bytes a row * skew * growth)`, where skew is the
share of the fullest slot in the last epoch's new rows, times the number of slots (1 when even), and
growth is how many new rows there were for each row of a stream (1 for a single join): in a tree,
what a join gives is new rows of the join above.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spillway_schemas.journal import SlotTotals

INTAKE_SHARE = 0.3
"""Of the headroom: 6 % of the budget by default. More than the bound above."""
SMALL_INTAKE_SHARE = 0.2
SMALL_BUDGET_BYTES = 8 << 20
SMALL_HEADROOM = 0.15
"""Part of the budget."""
ASSUMED_ROW_BYTES = 80
"""A row in state before any has been seen: hash 8, coordinate 12, a short key, a few fields."""
LEAST_ROWS = 250
"""Below this an epoch costs more than its rows; slots spill more instead."""
SHRINK, GROW = 0.8, 1.6
"""A change of the limit restarts the query, so it must be worth it: below or above these."""


def rows_per_epoch(
    slots: Sequence[SlotTotals],
    budget_bytes: int,
    number: int,
    threshold: float,
    most: int,
    joins: Collection[str] = (),
) -> int:
    """Rows of streams that one epoch may bring to `number` slots, at most `most`.

    `budget_bytes`: of one slot, the smallest, for each gets the same part of the rows. `joins`: the
    inputs that are joins, not streams.
    """
    rows = sum(slot.rows for slot in slots)
    row_bytes = max(sum(slot.state_bytes for slot in slots) / rows, 8.0) if rows else 0.0
    intake = [sum(slot.rows_in.values()) for slot in slots]
    skew = max(intake) * len(intake) / sum(intake) if sum(intake) else 1.0
    read = sum(n for slot in slots for name, n in slot.rows_in.items() if name not in joins)
    growth = sum(intake) / read if read else 1.0
    small = budget_bytes < SMALL_BUDGET_BYTES or 1 - threshold < SMALL_HEADROOM
    share = SMALL_INTAKE_SHARE if small else INTAKE_SHARE
    room = share * (1 - threshold) * budget_bytes
    fits = int(room / ((row_bytes or ASSUMED_ROW_BYTES) * skew * growth)) * number
    return max(min(fits, most), min(LEAST_ROWS, most))


def worth_changing(now: int, wanted: int) -> bool:
    """Whether the limit should be changed from `now` to `wanted`."""
    return wanted < SHRINK * now or wanted > GROW * now
