"""The story of a schedule, 1 when it fails: `python -m tests.property.model SEED [--trees]`."""

from __future__ import annotations

import sys

from .schedule import ONE, TREES, run, told


def main(seed: int, *, trees: bool) -> int:
    """Run one schedule with its trace."""
    outcome = run(seed, trees=TREES if trees else ONE, traced=True)
    print(told(outcome, lines=len(outcome.trace)))
    return int(bool(outcome.problems))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), trees="--trees" in sys.argv[2:]))
