"""Tell the story of a schedule: `python -m tests.property.model SEED`; 1 when it fails."""

from __future__ import annotations

import sys

from .schedule import run, told


def main(seed: int) -> int:
    """Run one schedule with its trace."""
    outcome = run(seed, traced=True)
    print(told(outcome, lines=len(outcome.trace)))
    return int(bool(outcome.problems))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
