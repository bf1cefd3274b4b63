"""What to do when something is missing that a test needs: never pass over it unnoticed.

`python -m tests.missing` prints what a kernel refuses here, by the names that `without` is given,
and says why. `.ci/run` asks it: such things cannot be installed.
"""

from __future__ import annotations

import os
import sys

import pytest


def without(needed: str, more: str) -> None:
    """Skip the test and say why; with `CI` set, where everything is to be tested, fail it, unless
    `SPILLWAY_TEST_WITHOUT` (names with commas between them) has what is needed.

    `more`: how to get it, or why it cannot be had.
    """
    why = f"there is no {needed}: {more}"
    known = os.environ.get("SPILLWAY_TEST_WITHOUT", "").split(",")
    if os.environ.get("CI") and needed not in known:
        pytest.fail(why)
    pytest.skip(why)


def refused() -> dict[str, str]:
    """What this user may not have of the kernel, and why."""
    from tests import cgroups, disks, hosts  # they import this file

    found = {each.NEEDED: each.refusal() for each in (cgroups, disks, hosts)}
    return {name: why for name, why in found.items() if why}


if __name__ == "__main__":
    found = refused()
    for name, why in found.items():
        print(f"there is no {name} ({why}): what needs one is NOT tested", file=sys.stderr)
    print(",".join(found))
