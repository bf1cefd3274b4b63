"""Small file systems of their own, for tests of disks that are full or read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.missing import without

PAGE = 4096
NEEDED = "mount"
"""As `without` is told."""


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
    """A file system of its own at `path`. Where this user may mount none, see `without`."""
    path.mkdir()
    if why := _mount(path, size):
        without(NEEDED, why)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def refusal() -> str:
    """Why this user may mount no file system; empty: one can be mounted."""
    with tempfile.TemporaryDirectory() as folder:
        why = _mount(Path(folder), "64k")
        if not why:
            subprocess.run(["umount", "-l", folder], check=True)
    return why


def _mount(path: Path, size: str) -> str:
    """Mount a tmpfs; what `mount` has against it."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    if done.returncode:
        return done.stderr.strip() or f"mount ends with {done.returncode}"
    return ""


def slow_disk(build: Path, under: Path, seconds: float) -> dict[str, str]:
    """What the environment of a process needs, so that each new file below `under` takes so long.
    It is compiled."""
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
    """A clock so many seconds ahead, by a library that is compiled."""
    file = build / "ahead"
    file.write_bytes(struct.pack("l", seconds))
    library = _compiled("shifted_clock", build)
    return Clock(file, {"LD_PRELOAD": library, "CLOCK_AHEAD": str(file)})


def _compiled(name: str, build: Path) -> str:
    """A library for LD_PRELOAD, from its source beside this file."""
    compiler = shutil.which("cc")
    if compiler is None:
        without("C compiler", "install gcc")
    library = build / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)
