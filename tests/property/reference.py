"""The reference model: what the engine must do, in dictionaries and products.

A row is a named tuple; two rows join when session, key and, at run time, generation agree. The
generation of a row is the number of the cut that took it out of memory; rows in memory are all
of the current one (None).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple


class Row(NamedTuple):
    session: str
    input: int
    key: tuple[object, ...]
    partition: int
    offset: int


Result = tuple[Row, ...]


class Reference:
    """All rows so far, each with its generation."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.generation: dict[Row, int | None] = {}

    def combinations(self, rows: Iterable[Row]) -> Iterator[Result]:
        """Every way to take one row of each input with one session and key."""
        by_key: dict[object, list[list[Row]]] = defaultdict(
            lambda: [[] for _ in range(self.inputs)]
        )
        for row in rows:
            by_key[row.session, row.key][row.input].append(row)
        for inputs in by_key.values():
            yield from product(*inputs)

    def _nothing(self) -> list[list[Row]]:
        return [[] for _ in range(self.inputs)]

    def resident(self) -> list[Row]:
        return [row for row, generation in self.generation.items() if generation is None]

    def insert(self, new: Iterable[Row]) -> Counter[Result]:
        """An epoch's rows: the results among rows in memory with at least one of them."""
        fresh = set(new)
        self.generation.update(dict.fromkeys(fresh))
        return Counter(c for c in self.combinations(self.resident()) if fresh & set(c))

    def cut(self, session: str, epoch: int, covers: Callable[[Row], bool]) -> list[Row]:
        """Spill a hash range of a session: its rows in memory become a generation."""
        spilled = [r for r in self.resident() if r.session == session and covers(r)]
        self.generation.update(dict.fromkeys(spilled, epoch))
        return spilled

    def bring_back(
        self, session: str, epoch: int, covers: Callable[[Row], bool]
    ) -> tuple[list[Row], Counter[Result]]:
        """Take a cut back: its rows, and what they give with those in memory."""
        back = {
            row
            for row, generation in self.generation.items()
            if (row.session, generation) == (session, epoch) and covers(row)
        }
        self.generation.update(dict.fromkeys(back))
        together = self.combinations(self.resident())
        return list(back), Counter(c for c in together if back & set(c) and set(c) - back)

    def missing(self, session: str) -> Counter[Result]:
        """What cleanup owes: the combinations that are not all of one generation."""
        rows = [row for row in self.generation if row.session == session]
        return Counter(
            c for c in self.combinations(rows) if len({self.generation[r] for r in c}) > 1
        )

    def everything(self, session: str) -> Counter[Result]:
        """Brute force."""
        return Counter(self.combinations(r for r in self.generation if r.session == session))
