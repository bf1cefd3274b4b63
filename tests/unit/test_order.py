"""The order in which tests run."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.order import LONG_FILES, long_files_first

ROOT = Path(__file__).parents[2]


@given(
    st.lists(st.sampled_from([*LONG_FILES, "a", "b"]), max_size=60).map(sorted), st.integers(1, 4)
)
def test_each_test_runs_once_and_files_stay_together(files: list[str], workers: int) -> None:
    found = long_files_first(range(len(files)), files, workers)
    assert sorted(found) == list(range(len(files)))
    for long in LONG_FILES:
        at = [n for n, item in enumerate(found) if files[item] == long]
        assert at == list(range(at[0], at[0] + len(at))) if at else True
        assert [found[n] for n in at] == sorted(found[n] for n in at)


def test_each_worker_but_the_last_begins_with_long_files() -> None:
    files = ["a"] * 40 + list(LONG_FILES[:6]) + ["b"] * 14
    found = long_files_first(range(60), files, 3)
    begin = [[files[item] for item in found[n : n + 3]] for n in (0, 20, 40)]
    assert begin == [list(LONG_FILES[0:6:2]), list(LONG_FILES[1:6:2]), ["a"] * 3]
    alone = long_files_first(range(60), files, 1)
    assert [files[item] for item in alone[:6]] == list(LONG_FILES[:6])


def test_long_files_are_there() -> None:
    assert [file for file in LONG_FILES if not (ROOT / file).exists()] == []
