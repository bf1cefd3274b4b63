"""A copy of the checkout for those who build a package of it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (".*", "var", "build", "*.egg-info", "__pycache__", "tests", "docs")


def copied_checkout(folder: Path) -> Path:
    """What a build reads, in a new folder: two builds in one folder remove each other's files."""
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT)))
