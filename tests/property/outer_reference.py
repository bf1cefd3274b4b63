"""The slow reference of an outer join: by key, every row of each input, or nothing where it is
optional and has none."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

Rows = Sequence[tuple[Hashable, Any]]
"""(key, what stands for the row) of an input's rows."""


def outer_joined(inputs: Sequence[Rows], optional: Collection[int]) -> Counter[Any]:
    """All results: the key, then what stands for the row of each input, None where there is none.

    `optional`: the numbers of inputs that a result may lack.
    """
    found: Counter[Any] = Counter()
    for key in {key for rows in inputs for key, _ in rows}:
        sides: list[Iterable[Any]] = []
        for i, rows in enumerate(inputs):
            own = [row for of, row in rows if of == key]
            sides.append([None] if not own and i in optional else own)
        for rows in itertools.product(*sides):
            found[(key, *rows)] += 1
    return found
