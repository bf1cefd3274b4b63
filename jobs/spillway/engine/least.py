"""The least budget of a slot with which an epoch fits into its folder.

Below it every row goes straight to the spill table, and every result of the day waits for cleanup:
the join would run, and give nothing. It is no recommendation: state that shall stay needs more.
"""

from __future__ import annotations

from spillway.engine.state.runs import FILE_OVERHEAD_BYTES
from spillway.engine.upkeep import SLACK_PARTS, manifest_bytes
from spillway.policy.intake import ASSUMED_ROW_BYTES, LEAST_ROWS

TOO_SMALL = (
    "cannot hold an epoch: every row would be spilled, and every result would wait for cleanup"
)
"""What is said of a budget that is smaller."""


def least_budget(inputs: int, groups: int, slots: int, most_rows: int) -> int:
    """Bytes that a slot needs for the smallest epoch of one session.

    What the folder keeps free for a manifest of all `groups` and of a file and a merged one for
    each of the `inputs` (of all joins, both); those files' own overhead; an even share of the
    fewest rows that an epoch may bring (`LEAST_ROWS`, or `most_rows` of
    `stream.max_rows_per_epoch`); and the part of the budget that is kept for trimming alone.
    """
    rows = -(-min(LEAST_ROWS, most_rows) // slots)
    files = manifest_bytes(2 * inputs, groups) + FILE_OVERHEAD_BYTES * inputs
    return -(-(files + rows * ASSUMED_ROW_BYTES) * SLACK_PARTS // (SLACK_PARTS - 1))
