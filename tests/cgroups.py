"""A memory control group of a test's own, whose limit the kernel enforces."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.missing import without

FIRST_VERSION = Path("/sys/fs/cgroup/memory")
NEEDED = "control group"
"""As `without` is told."""


@dataclass(frozen=True)
class ControlGroup:
    """Of the first version: the second one's files are planted where they are tested."""

    folder: Path

    def run(self, code: str) -> str:
        """What a Python process in the group prints."""
        enter = f"open({str(self.folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        done = subprocess.run(
            [sys.executable, "-c", f"import os\n{enter}\n{code}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def limit(self, limit_bytes: int) -> None:
        """Another limit."""
        (self.folder / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def squeeze(self, left_bytes: int) -> None:
        """Leave so much beyond what is in use and cannot be taken back."""
        (self.folder / "memory.force_empty").write_text("0")
        used = int((self.folder / "memory.usage_in_bytes").read_text())
        self.limit(used + left_bytes)


@contextlib.contextmanager
def control_group(limit_bytes: int) -> Iterator[ControlGroup]:
    """A group with this limit. Where this user may make none, see `without`."""
    if why := refusal():
        without(NEEDED, why)
    with _made(limit_bytes) as group:
        yield group


def refusal() -> str:
    """Why this user may make no group; empty: one can be made."""
    if not os.access(FIRST_VERSION, os.W_OK):
        return f"{FIRST_VERSION} is not there, or not this user's"
    try:
        with _made(1 << 30):
            return ""
    except OSError as error:
        return str(error)


@contextlib.contextmanager
def _made(limit_bytes: int) -> Iterator[ControlGroup]:
    folder = FIRST_VERSION / f"spillway-test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield ControlGroup(folder)
    finally:
        folder.rmdir()
