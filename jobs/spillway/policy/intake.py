"""How many rows an epoch may take, so that its intake fits into what the threshold leaves free.

A slot spills when its state has passed the threshold, after inserting the epoch's rows. What lies
above the threshold holds the intake, the room to work (`Room.for_work`), dead rows that wait in
their files (`StepTask.shape_kept`), and what is kept for trimming, a file of a 32nd of the budget.
Without the file, H is left of the headroom: 0.17 of the budget by default. The intake may take
`INTAKE_SHARE` = 0.8 of it. In the epoch that spills, the rest does not hold all of the room to
work, half an intake: what cannot be merged then is merged in the epochs after it, for rows that
were spilled leave their files when the next one begins, and so does the shortage.

Below `SMALL_BUDGET_BYTES` the share is `SMALL_INTAKE_SHARE`: files have their least size there, and
what each takes beside its rows is a larger part of the headroom. Both shares are measured: larger
epochs cost results, smaller ones CPU time (decision 49).

`rows = INTAKE_SHARE * (1 - threshold - 1/32) * budget / (bytes a row * skew * growth)`, where skew
is the share of the fullest slot in the last epoch's new rows, times the number of slots (1 when
even), and growth is how many new rows there were for each row of a stream (1 for a single join): in
a tree, what a join gives is new rows of the join above.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spillway_schemas.journal import SlotTotals

INTAKE_SHARE = 0.8
"""Of the headroom without a file: 13.5 % of the budget by default."""
SMALL_INTAKE_SHARE = 0.3
KEPT_FOR_TRIMMING = 1 / 32
"""Part of the budget (`Shape.files_in_budget`)."""
LEAST_HEADROOM = 0.01
"""With a higher threshold epochs are as small as with that headroom."""
SMALL_BUDGET_BYTES = 4 << 20
ASSUMED_ROW_BYTES = 80
"""A row in state before any has been seen: hash 8, coordinate 12, a short key, a few fields."""
LEAST_ROWS = 250
"""Below this an epoch costs more than its rows; slots spill more instead."""


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
    share = SMALL_INTAKE_SHARE if budget_bytes < SMALL_BUDGET_BYTES else INTAKE_SHARE
    room = share * max(1 - threshold - KEPT_FOR_TRIMMING, LEAST_HEADROOM) * budget_bytes
    fits = int(room / ((row_bytes or ASSUMED_ROW_BYTES) * skew * growth)) * number
    return max(min(fits, most), min(LEAST_ROWS, most))
