"""The story of a schedule: `python -m tests.property.model SEED [--trees] [--lossy]`. Ends with 1
when it fails."""

from __future__ import annotations

import sys

from .schedule import ONE, TREES, run, told


def main(seed: int, *, trees: bool, lossy: bool) -> int:
    """Run one schedule with its trace."""
    outcome = run(seed, trees=TREES if trees else ONE, lossy=lossy, traced=True)
    print(told(outcome, lines=len(outcome.trace)))
    return int(bool(outcome.problems))


if __name__ == "__main__":
    _, seed, *options = sys.argv
    sys.exit(main(int(seed), trees="--trees" in options, lossy="--lossy" in options))
