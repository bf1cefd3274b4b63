"""Small file systems of their own, for tests of disks that are full or read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
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
    library = _compiled("slow_disk", build)
    return {"LD_PRELOAD": library, "SLOW_UNDER": str(under), "SLOW_S": str(seconds)}


@dataclass(frozen=True)
class Clock:
    """The time of day that some processes are shown."""

    file: Path
    env: dict[str, str]
    """What their environment needs."""

    def set_ahead(self, seconds: int) -> None:
        """Let it jump, at once and in all of them."""
        with open(self.file, "r+b") as file:
            file.write(struct.pack("l", seconds))


def shifted_clock(build: Path, seconds: int = 0) -> Clock:
    """A clock so many seconds ahead; the test is skipped where nothing can be compiled."""
    file = build / "ahead"
    file.write_bytes(struct.pack("l", seconds))
    library = _compiled("shifted_clock", build)
    return Clock(file, {"LD_PRELOAD": library, "CLOCK_AHEAD": str(file)})


def _compiled(name: str, build: Path) -> str:
    """A library for LD_PRELOAD, from its source beside this file."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = build / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)
