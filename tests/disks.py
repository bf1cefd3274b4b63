"""Small file systems of their own, for tests of disks that are full or read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = 4096


@dataclass(frozen=True)
class Disk:
    """A mounted tmpfs."""

    path: Path

    def fill(self, *, leave: int = 0) -> None:
        """Take all room but `leave` bytes."""
        with open(self.path / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        os.truncate(self.path / "filler", (self.path / "filler").stat().st_size - leave)

    def free(self) -> None:
        """Give the room back."""
        (self.path / "filler").unlink()

    def remount(self, options: str) -> None:
        """Change the mount, e.g. `ro`."""
        subprocess.run(["mount", "-o", f"remount,{options}", self.path], check=True)


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[Disk]:
    """A file system of its own at `path`; the test is skipped where this user may mount none."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def slow_disk(build: Path, under: Path, seconds: float) -> dict[str, str]:
    """What the environment of a process needs, so that each new file below `under` takes so long;
    the test is skipped where nothing can be compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = build / "slow_disk.so"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SLOW_UNDER": str(under), "SLOW_S": str(seconds)}
