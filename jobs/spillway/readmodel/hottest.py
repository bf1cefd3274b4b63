"""The keys that most rows in memory have, as `statistics` knows them.

A slot names the key with the most rows of each of its largest groups whenever it writes
statistics, for a split needs to know it (`spillway.engine.hotkeys`). So asking for them costs the
stream nothing.

Known limitation: the second key of a group is not named, nor any key of a small group; rows that
were spilled do not count. A key whose results matter has many rows, and lies in a large group.
"""

from __future__ import annotations

import numpy as np

from spillway.readmodel.groups import GroupStates
from spillway.readmodel.model import ReadModel
from spillway_schemas.hash_space import group_text, join_numbers
from spillway_schemas.journal import Record


class HotKey(Record):
    """A key, some seconds ago."""

    key: str
    """Its only column, or a JSON list of its columns."""
    join: str
    """The join whose key it is."""
    group: str
    slot: int
    rows: int
    """In memory, all inputs, open sessions."""
    share: float
    """Of the rows of its group."""


def hottest_keys(model: ReadModel, states: GroupStates, most: int) -> list[HotKey]:
    """The keys with the most rows, those first. `states`: of the model's assignment."""
    names = model.state.genesis.joins
    prefixes = [prefix for prefix, _ in model.state.groups]
    joins = join_numbers(prefixes, len(names))
    rows = np.rint(states.hot_share * states.rows).astype(np.int64)
    found: dict[tuple[str, str], HotKey] = {}
    for g in np.argsort(-rows, kind="stable").tolist():
        if not (states.hot_key[g] and rows[g]):
            continue
        key = HotKey(
            key=states.hot_key[g],
            join=names[int(joins[g])],
            group=group_text(prefixes[g], names),
            slot=model.state.groups[g][1],
            rows=int(rows[g]),
            share=round(float(states.hot_share[g]), 4),
        )
        # Until the halves of a group that was split have figures of their own, both have its key.
        known = found.get((key.join, key.key))
        more = 0 if known is None else known.rows
        found[key.join, key.key] = (known or key).model_copy(update={"rows": key.rows + more})
    return sorted(found.values(), key=lambda each: -each.rows)[:most]
