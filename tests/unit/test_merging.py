"""Which runs are merged and which files trimmed, for given sizes."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import strategies as st

from spillway.engine.state.merging import FileLiveness, RunSize, Shape, due_merges, to_trim
from spillway.engine.state.statefiles import Merging
from tests.lanes import explored

SHAPE = Shape()


@pytest.mark.parametrize(
    ("rows", "size"),
    [(0, 0), (1023, 0), (1024, 1), (4095, 1), (4096, 2), (16383, 2), (16384, 3)],
)
def test_classes_of_runs_begin_at_powers_of_the_fan_in(rows: int, size: int) -> None:
    assert SHAPE.size_class(rows) == size


def test_files_are_a_whole_part_of_the_budget_within_bounds() -> None:
    assert SHAPE.file_bytes(10**8 + 1) == 3_125_000
    assert SHAPE.new_file_bytes(10**8 + 1) == 3_125_000
    for size in (SHAPE.file_bytes, SHAPE.new_file_bytes):
        assert (size(1), size(10**12)) == (64 << 10, 16 << 20)
    assert SHAPE.fuel_bytes(1000, 10**8 + 1) == 4 * 1000 + 2 * 3_125_000


def runs(session: str, input_: int, sizes: dict[int, int]) -> list[RunSize]:
    return [RunSize(session, input_, run, rows) for run, rows in sizes.items()]


def test_as_many_runs_of_a_class_as_the_fan_in_are_merged() -> None:
    many = [
        *runs("d", 0, {4: 9, 2: 9, 3: 9, 1: 9}),
        *runs("d", 1, {5: 9, 6: 9, 7: 9}),
        *runs("d", 0, {8: 2000, 9: 2000, 10: 2000, 11: 2000, 12: 2000}),
        *runs("e", 1, {13: 8, 14: 8, 15: 8, 16: 8}),
    ]
    merges, next_run = due_merges(SHAPE, many, [], 20)
    assert merges == [
        Merging("e", 1, (13, 14, 15, 16), 22),
        Merging("d", 0, (1, 2, 3, 4), 20),
        Merging("d", 0, (8, 9, 10, 11, 12), 21),
    ]
    assert next_run == 23


def test_runs_of_different_slices_are_not_merged() -> None:
    """They expire apart."""
    many = [RunSize("d", 0, run, 9, run // 2 - 1) for run in range(12)]
    assert due_merges(SHAPE, many, [], 20) == ([], 20)
    shape = Shape(fan_in=2)
    assert due_merges(shape, many[:4], [], 20)[0] == [
        Merging("d", 0, (0, 1), 20),
        Merging("d", 0, (2, 3), 21),
    ]


def test_merges_under_way_are_kept_and_their_runs_are_not_merged_twice() -> None:
    half = Merging("d", 0, (1, 2, 3, 4), 9)
    many = runs("d", 0, {1: 5, 2: 5, 9: 10, 10: 9, 11: 9, 12: 9})
    assert due_merges(SHAPE, many, [half], 13) == ([half], 13)
    fresh = Merging("d", 0, (10, 11, 12, 14), 15)
    assert due_merges(SHAPE, [*many, *runs("d", 0, {14: 1})], [half], 15) == ([half, fresh], 16)
    # What is left to do comes first where it is less; a source that is used up has nothing left.
    less = Merging("c", 0, (1, 2), 3)
    rows = [*many, *runs("c", 0, {1: 9})]
    assert due_merges(SHAPE, rows, [half, less], 13)[0] == [less, half]
    as_much = Merging("e", 0, (1,), 2)
    rows = [*many, *runs("e", 0, {1: 10})]
    assert due_merges(SHAPE, rows, [as_much, half], 13)[0] == [half, as_much]


def merged_at_once(shape: Shape, rows: int, budget: int) -> int:
    """Fill a budget by `rows` (of a byte) an epoch: the most merges of one class that are under way
    together."""
    held: dict[int, int] = {}
    under_way: list[Merging] = []
    done: dict[int, int] = defaultdict(int)
    made = most = 0
    fuel = shape.fuel_bytes(rows, budget)
    for _ in range(budget // rows):
        held[made] = rows
        sizes = [RunSize("d", 0, run, n) for run, n in held.items()]
        under_way, made = due_merges(shape, sizes, under_way, made + 1)
        of_class = Counter(shape.size_class(max(held[s] for s in m.sources)) for m in under_way)
        most = max(most, *of_class.values(), 0)
        left, unfinished = fuel, []
        for merge in under_way:
            step = min(left, sum(held[source] for source in merge.sources) - done[merge.target])
            left -= step
            done[merge.target] += step
            if done[merge.target] < sum(held[source] for source in merge.sources):
                unfinished.append(merge)
                continue
            for source in merge.sources:
                del held[source]
            held[merge.target] = done.pop(merge.target)
        under_way = unfinished
    return most


@pytest.mark.parametrize("epochs", [5, 64, 257, 1500])
@pytest.mark.parametrize("budget", [1 << 22, 1 << 26, 1 << 30])
def test_merges_keep_up_until_the_budget_is_full(budget: int, epochs: int) -> None:
    """As the module derives it: none waits for another of its class."""
    assert merged_at_once(SHAPE, budget // epochs, budget) <= 1
    # As many intakes as there are classes are needed: 2 fail when the third class has its second
    # merge, which is after 2 * 4 ** 3 epochs.
    lean = Shape(fuel_files=0, fuel_intakes=2)
    assert (merged_at_once(lean, budget // epochs, budget) > 1) == (epochs > 2 * 4**3)


def test_merges_keep_up_with_64_gib_and_not_with_more() -> None:
    """Files have an upper bound, and what they add to an epoch's fuel has one."""
    for epochs in (1100, 2100, 2600):
        assert merged_at_once(SHAPE, 2**36 // epochs, 2**36) <= 1
    assert merged_at_once(SHAPE, 2**37 // 2100, 2**37) <= 1
    assert merged_at_once(SHAPE, 2**37 // 2600, 2**37) == 2


def trimmed(*, folder: int, fuel: int, short: int = 0, shape: Shape = SHAPE) -> list[str]:
    """Of a budget of 100: files with 90, 90, 80, 25 and 10 dead bytes of 100."""
    worn = [
        FileLiveness("e", 100, 75),
        FileLiveness("c", 100, 10),
        FileLiveness("b", 100, 10),
        FileLiveness("d", 100, 20),
    ]
    return to_trim(
        shape,
        [*worn, FileLiveness("f", 100, 90)],
        folder_bytes=folder,
        budget_bytes=100,
        short_bytes=short,
        fuel=fuel,
    )


def test_the_files_with_most_dead_bytes_are_trimmed_first_within_the_fuel() -> None:
    assert trimmed(folder=49, fuel=1000) == []
    assert trimmed(folder=50, fuel=1000) == ["b", "c", "d", "e"]
    assert trimmed(folder=50, fuel=40) == ["b", "c", "d"]
    assert trimmed(folder=50, fuel=39) == ["b", "c"]
    assert trimmed(folder=50, fuel=9) == []
    exactly = Shape(dead_share=0.25)
    assert trimmed(folder=50, fuel=1000, shape=exactly) == ["b", "c", "d", "e"]
    assert FileLiveness("a", 0, 0).dead_share == 1


def test_for_want_of_room_files_are_trimmed_whatever_it_costs() -> None:
    """In a folder that is not full, and without fuel; but none for little."""
    for short, files in ((1, 1), (90, 1), (91, 2), (180, 2), (181, 3), (261, 4), (900, 4)):
        assert trimmed(folder=0, fuel=0, short=short) == ["b", "c", "d", "e"][:files], short
    assert trimmed(folder=50, fuel=39, short=1) == ["b", "c"], "then as far as fuel goes"
    assert trimmed(folder=50, fuel=20, short=181) == ["b", "c", "d"]


def test_a_file_of_which_nothing_lives_frees_nothing_here() -> None:
    worn = [FileLiveness("gone", 100, 0), FileLiveness("half", 100, 50)]
    found = to_trim(SHAPE, worn, folder_bytes=0, budget_bytes=100, short_bytes=50, fuel=0)
    assert found == ["half"]


def test_some_dead_bytes_wait_until_more_of_their_files_is_dead() -> None:
    """295 bytes are dead at first, then 205, 115, 35 and 10."""
    for stay, files in ((0, 4), (34, 4), (35, 3), (114, 3), (116, 2), (294, 1), (296, 0)):
        shape = Shape(dead_in_budget=stay / 100)
        assert trimmed(folder=75, fuel=1000, shape=shape) == ["b", "c", "d", "e"][:files], stay


WORN = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(0, 1000)).map(
        lambda each: (each[0], min(each))  # bytes, and of those that live
    ),
    max_size=30,
)


@explored(
    100,
    2000,
    sizes=WORN,
    share=st.sampled_from([0.025, 0.1, 0.15, 0.5]),
    stay=st.sampled_from([0.0, 0.02, 0.2]),
    budget=st.integers(1, 20_000),
    short=st.integers(-1000, 10_000),
    fuel=st.integers(0, 5000),
)
def test_what_trimming_copies_is_bounded_by_what_it_frees(
    sizes: list[tuple[int, int]], share: float, stay: float, budget: int, short: int, fuel: int
) -> None:
    """As the module derives it."""
    worn = {f"{at}": FileLiveness(f"{at}", *each) for at, each in enumerate(sizes)}
    found = to_trim(
        Shape(dead_share=share, dead_in_budget=stay),
        worn.values(),
        folder_bytes=sum(each.bytes for each in worn.values()),
        budget_bytes=budget,
        short_bytes=short,
        fuel=fuel,
    )
    copied = sum(worn[name].live_bytes for name in found)
    freed = sum(worn[name].bytes - worn[name].live_bytes for name in found)
    for_each = 1 / share - 1
    largest = max((each.live_bytes for each in worn.values()), default=0)
    assert copied <= for_each * freed + 1e-6
    assert copied <= max(for_each * max(short, 0) + largest, fuel) + 1e-6
    others = [each for name, each in worn.items() if name not in found and each.live_bytes]
    assert freed >= short or all(each.dead_share < share for each in others)
