"""The joins of a query share the hashes: each has a part to itself, in the order of the joins."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway_schemas.hash_space import (
    ROOT,
    above,
    group_of,
    group_text,
    join_named,
    join_of,
    joins_of,
    levels,
    spaces,
)
from spillway_schemas.journal import HASH_BITS, Prefix

DEEPEST = 12
"""Bits of a range here."""
JOINS = st.integers(1, 40)


def texts(prefixes: tuple[Prefix, ...]) -> str:
    return " ".join(each.text for each in prefixes)


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """The parents of a tree's joins, children first."""
    joins = draw(JOINS)
    return [*(draw(st.integers(k + 1, joins - 1)) for k in range(joins - 1)), ROOT]


@st.composite
def ranges(draw: st.DrawFn) -> Prefix:
    depth = draw(st.integers(0, DEEPEST))
    return Prefix(depth, draw(st.integers(0, (1 << depth) - 1)))


@pytest.mark.parametrize(
    ("joins", "expected"),
    [
        (1, "0/0"),
        (2, "1/0 1/1"),
        (3, "2/0 2/1 1/1"),
        (4, "2/0 2/1 2/2 2/3"),
        (5, "3/0 3/1 2/1 2/2 2/3"),
        (6, "3/0 3/1 3/2 3/3 2/2 2/3"),
        (7, "3/0 3/1 3/2 3/3 3/4 3/5 2/3"),
        (8, "3/0 3/1 3/2 3/3 3/4 3/5 3/6 3/7"),
    ],
)
def test_every_join_has_a_space(joins: int, expected: str) -> None:
    """No join has less than half of what another one has, and the root never has less."""
    assert texts(spaces(joins)) == expected


@pytest.mark.parametrize("joins", [0, -1])
def test_there_is_no_query_without_a_join(joins: int) -> None:
    with pytest.raises(ValueError, match=f"^a query has one join or more, not {joins}$"):
        spaces(joins)


@given(JOINS)
def test_spaces_cover_every_hash_once_in_the_order_of_the_joins(joins: int) -> None:
    found = spaces(joins)
    assert len(found) == joins
    assert found[0].lo == 0
    assert [a.hi for a in found] == [*(b.lo for b in found[1:]), 1 << HASH_BITS]
    sizes = [each.hi - each.lo for each in found]
    assert max(sizes) <= 2 * min(sizes)
    assert sizes == sorted(sizes)


@given(JOINS, ranges())
def test_a_range_belongs_to_the_joins_whose_hashes_it_has(joins: int, range_: Prefix) -> None:
    """The reference looks at every range of the deepest kind, which lies in one space each."""
    width = HASH_BITS - DEEPEST
    owner = [n for n, s in enumerate(spaces(joins)) for _ in range(s.lo >> width, s.hi >> width)]
    owners = sorted(set(owner[range_.lo >> width : range_.hi >> width]))
    assert joins_of(range_, joins) == owners
    if len(owners) == 1:
        assert join_of(range_, joins) == owners[0]
    else:
        with pytest.raises(ValueError, match=f"^{range_.text} is no range of one of {joins} joins"):
            join_of(range_, joins)


@pytest.mark.parametrize(
    ("range_", "joins", "owners"),
    [
        (Prefix(0, 0), 1, [0]),
        (Prefix(0, 0), 3, [0, 1, 2]),
        (Prefix(1, 0), 3, [0, 1]),
        (Prefix(1, 1), 3, [2]),
        (Prefix(2, 1), 3, [1]),
        (Prefix(9, 511), 3, [2]),
        (Prefix(40, 0), 5, [0]),
        (Prefix(2, 0), 5, [0, 1]),
    ],
)
def test_which_joins_have_hashes_of_a_range(range_: Prefix, joins: int, owners: list[int]) -> None:
    assert joins_of(range_, joins) == owners


@given(ranges(), ranges())
def test_a_part_of_a_range_is_what_the_part_is_of_all_hashes(outer: Prefix, inner: Prefix) -> None:
    part = outer.part(inner)
    assert outer.covers(part)
    assert part.depth == outer.depth + inner.depth
    width = outer.hi - outer.lo
    assert part.lo == outer.lo + inner.lo * width // (1 << HASH_BITS)
    assert part.hi == outer.lo + inner.hi * width // (1 << HASH_BITS)


@pytest.mark.parametrize(
    ("outer", "inner", "part"),
    [
        ("0/0", "0/0", "0/0"),
        ("0/0", "9/17", "9/17"),
        ("9/17", "0/0", "9/17"),
        ("1/1", "1/0", "2/2"),
        ("2/1", "3/5", "5/13"),
        ("3/7", "2/3", "5/31"),
    ],
)
def test_parts_of_ranges(outer: str, inner: str, part: str) -> None:
    assert Prefix.parse(outer).part(Prefix.parse(inner)).text == part


@pytest.mark.parametrize(
    ("parents", "joins", "found"),
    [
        ([ROOT], [0], []),
        ([1, 2, ROOT], [], []),
        ([1, 2, ROOT], [0], [1, 2]),
        ([1, 2, ROOT], [1, 0], [1, 2]),
        ([1, 2, ROOT], [2], []),
        ([4, 2, 4, 4, ROOT], [1], [2, 4]),
        ([4, 2, 4, 4, ROOT], [0, 3], [4]),
        ([4, 2, 4, 4, ROOT], [4, 1], [2, 4]),
    ],
)
def test_the_joins_above(parents: list[int], joins: list[int], found: list[int]) -> None:
    assert above(parents, joins) == found


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([ROOT], (1,)),
        ([1, ROOT], (1, 2)),
        ([1, 2, 3, ROOT], (1, 2, 3, 4)),
        ([2, 2, ROOT], (1, 1, 2)),
        ([4, 2, 4, 4, ROOT], (1, 1, 2, 1, 3)),
    ],
)
def test_levels_are_the_longest_way_down(parents: list[int], expected: tuple[int, ...]) -> None:
    assert levels(parents) == expected


@given(trees())
def test_a_join_is_one_level_above_its_highest_child(parents: list[int]) -> None:
    found = levels(parents)
    for number, level in enumerate(found):
        children = [found[k] for k, parent in enumerate(parents) if parent == number]
        assert level == 1 + max(children, default=0)
        way, at = [], number
        while (at := parents[at]) != ROOT:
            way.append(at)
        assert above(parents, [number]) == way
    assert found[-1] == max(found)


NAMES = ("abc", "quoted", "five")
"""Of three joins: their spaces are 2/0, 2/1 and 1/1."""


@pytest.mark.parametrize(
    ("group", "names", "text"),
    [
        (Prefix(9, 17), ("join",), "9/17"),
        (Prefix(9, 17), ("alone",), "9/17"),
        (Prefix(11, 17), NAMES, "abc:9/17"),
        (Prefix(11, 512 + 17), NAMES, "quoted:9/17"),
        (Prefix(10, 512 + 17), NAMES, "five:9/17"),
        (Prefix(2, 1), NAMES, "quoted:0/0"),
        (Prefix(64, 2**64 - 1), NAMES, f"five:63/{2**63 - 1}"),
    ],
)
def test_a_group_is_written_by_its_join(group: Prefix, names: tuple[str, ...], text: str) -> None:
    assert group_text(group, names) == text
    assert group_of(text, names) == group


@given(st.integers(1, 12), ranges(), st.data())
def test_a_group_s_text_comes_back(joins: int, inner: Prefix, data: st.DataObject) -> None:
    names = [f"j{n}" for n in range(joins)]
    join = data.draw(st.integers(0, joins - 1))
    group = spaces(joins)[join].part(inner)
    text = group_text(group, names)
    assert text == (inner.text if joins == 1 else f"j{join}:{inner.text}")
    assert group_of(text, names) == group


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "9/17",
            "'9/17' is not a group: write JOIN:DEPTH/VALUE, for example abc:9/17; "
            "the joins are abc, quoted, five",
        ),
        ("ab:9/17", "'ab:9/17': there is no join 'ab'; the joins are abc, quoted, five"),
        (":9/17", "':9/17': there is no join ''; the joins are abc, quoted, five"),
        (
            "abc:9/17:1",
            "'abc:9/17:1': there is no join 'abc:9/17'; the joins are abc, quoted, five",
        ),
        ("abc:9", "'abc:9': '9' is not a group: write DEPTH/VALUE, for example 9/17"),
        ("abc:2/4", "'abc:2/4': '2/4' is not a group: with 2 bits numbers go up to 3"),
    ],
)
def test_what_is_no_group_of_a_tree_says_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        group_of(text, NAMES)


def test_a_join_is_no_part_of_a_group_where_there_is_one() -> None:
    with pytest.raises(ValueError, match=r"^.join:9/17. is not a group: write DEPTH/VALUE"):
        group_of("join:9/17", ("join",))


def test_joins_have_numbers_by_their_names() -> None:
    assert [join_named(name, NAMES) for name in NAMES] == [0, 1, 2]


def test_what_lies_in_several_joins_is_written_as_a_part_of_all_hashes() -> None:
    assert group_text(Prefix(1, 0), NAMES) == "1/0"
