"""Which tests are too slow for `make check`, by a run that measured them.

    python -m pytest -q -n 2 -m "not server and not soak" tests --durations=0 -vv > FILE
    python -m tests.slow FILE

writes `tests/slow.txt`: those that took `SLOW_S` or more, setup and teardown included. What the
protocol and the engine promise is tried by `make check` however long it takes.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
SLOW_S = 0.4
PROMISES = (
    "tests/property/test_protocol_model.py::test_schedules_are_exact",
    "tests/property/test_engine_schedules.py::test_schedules_are_exact",
    "tests/property/test_tree_schedules.py::test_days_of_trees_are_exact",
    "tests/property/test_window_schedules.py::test_days_with_windows_are_exact",
    "tests/property/test_cleanup_exact.py",
    "tests/property/test_tree_joins.py",
)
MEASURED = re.compile(r"^([0-9.]+)s (?:call|setup|teardown) +(tests/.+)$", re.MULTILINE)


def slow(report: str) -> list[str]:
    """The ids of those tests, sorted."""
    took: dict[str, float] = defaultdict(float)
    for seconds, test in MEASURED.findall(report):
        took[test] += float(seconds)
    return sorted(t for t, s in took.items() if s >= SLOW_S and not t.startswith(PROMISES))


def main(report: str) -> None:
    """Write the list."""
    found = slow(Path(report).read_text())
    LIST.write_text("".join(f"{test}\n" for test in found))
    print(f"{len(found)} tests take {SLOW_S} s or more")


if __name__ == "__main__":
    main(*sys.argv[1:])
