"""Every combination that has a new row is found in one turn, and no other is."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spillway.corrections.leaves import Met, turns

COUNTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4)
"""Of each leaf, how many rows are old and how many are new."""


@given(COUNTS)
def test_turns_find_each_combination_with_a_new_row_once(counts: list[tuple[int, int]]) -> None:
    rows = {
        (leaf, met): [(leaf, is_new, n) for n in range(count)]
        for leaf, (old, new) in enumerate(counts)
        for met, is_new, count in ((Met.OLD, False, old), (Met.NEW, True, new))
    }

    def taking_part(leaf: int, met: Met) -> list[tuple[int, bool, int]]:
        if met is Met.BOTH:
            return rows[leaf, Met.OLD] + rows[leaf, Met.NEW]
        return rows[leaf, met]

    found = Counter(
        combination
        for _, met in turns([leaf for leaf, (_, new) in enumerate(counts) if new], len(counts))
        for combination in itertools.product(*itertools.starmap(taking_part, enumerate(met)))
    )
    everything = itertools.product(*(taking_part(leaf, Met.BOTH) for leaf in range(len(counts))))
    assert found == Counter(each for each in everything if any(is_new for _, is_new, _ in each))
