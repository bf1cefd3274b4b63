"""The list of tests that `make check` leaves out."""

from __future__ import annotations

from pathlib import Path

from tests.slow import LIST, PROMISES, SLOW_S, slow

REPORT = """
0.06s setup    tests/unit/test_a.py::test_one[a b]
0.35s call     tests/unit/test_a.py::test_one[a b]
0.39s call     tests/unit/test_a.py::test_two
9.00s call     tests/property/test_tree_joins.py::test_three
"""


def test_setup_counts_and_promises_stay() -> None:
    assert SLOW_S == 0.4
    assert slow(REPORT) == ["tests/unit/test_a.py::test_one[a b]"]


def test_what_is_listed_exists() -> None:
    """A test that was renamed would come back to the fast lane unseen."""
    for test in [*LIST.read_text().splitlines(), *PROMISES]:
        file, _, rest = test.partition("::")
        name = rest.partition("[")[0].rpartition("::")[2]
        assert f"def {name}(" in Path(file).read_text() or not name, test
