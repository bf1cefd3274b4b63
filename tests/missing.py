"""What to do when a program is missing that a test needs: never pass over it unnoticed."""

from __future__ import annotations

import os

import pytest


def without(program: str, remedy: str) -> None:
    """Skip the test and say why; with `CI` set, where everything is to be tested, fail it."""
    why = f"there is no {program}: {remedy}"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
