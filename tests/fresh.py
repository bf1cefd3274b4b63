"""Seeds that are new in each run, except in CI, where a run must not fail by chance."""

from __future__ import annotations

import os
import secrets


def fixed_seeds() -> bool:
    """Whether only the fixed seeds are wanted."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def fresh_seed() -> int:
    """A seed that no fixed one is near."""
    return 10_000_000 + secrets.randbits(40)
