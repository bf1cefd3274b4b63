"""What to do when a program is missing that a test needs: never pass over it unnoticed."""

from __future__ import annotations

import os

import pytest


def without(program: str, remedy: str) -> None:
    """Skip the test and say why; with `CI` set, where everything is to be tested, fail it, unless
    `SPILLWAY_TEST_WITHOUT` (names with commas between them) has the program."""
    why = f"there is no {program}: {remedy}"
    if os.environ.get("CI") and program not in os.environ.get("SPILLWAY_TEST_WITHOUT", "").split(
        ","
    ):
        pytest.fail(why)
    pytest.skip(why)
