"""Prometheus' own tool: `promtool(folder, "test", "rules", FILE)`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.missing import without


def promtool(folder: Path, *arguments: str) -> None:
    """Run it in a folder; it must agree."""
    program = shutil.which("promtool")
    if program is None:
        without("promtool", "see how .ci/run gets it")
    done = subprocess.run(
        [str(program), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
