"""The memory that this process may have: the machine's, or less where a container is limited.

Linux says it by control groups, of which there are two versions. A group is limited by those above
it, too. Within a container the path that the kernel gives may be the host's, with the container's
own group mounted at the root; so the root is always looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

OF_PROCESS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")
NONE = 1 << 60
"""Limits of that many bytes are none."""


class MemoryLimit(NamedTuple):
    """Of a control group, in bytes."""

    most: int
    used: int
    """What cannot be had by dropping pages of files that were read."""

    @property
    def free(self) -> int:
        """What is left."""
        return max(self.most - self.used, 0)


def physical_memory() -> int:
    """Bytes that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_limits(of_process: Path = OF_PROCESS, mounted: Path = MOUNTED) -> list[MemoryLimit]:
    """Of the process's group and of those above it, as far as they have one."""
    try:
        lines = of_process.read_text().splitlines()
    except OSError:
        return []
    return [limit for line in lines for limit in _limits(line, mounted)]


def most_memory() -> int:
    """Bytes that this process may have at the most, whoever uses them now."""
    return min([physical_memory(), *(limit.most for limit in memory_limits())])


def _limits(line: str, mounted: Path) -> Iterator[MemoryLimit]:
    """Of one line of the process's groups: the limits of its group, and of those above."""
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if number == "0" and not controllers:
        base, most, used, cached = mounted, "memory.max", "memory.current", "inactive_file"
    elif "memory" in controllers.split(","):
        base, most = mounted / "memory", "memory.limit_in_bytes"
        used, cached = "memory.usage_in_bytes", "total_inactive_file"
    else:
        return
    group = PurePosixPath(path)
    for each in (group, *group.parents):
        folder = base / str(each).lstrip("/")
        try:
            limit = int((folder / most).read_text())
            if limit < NONE:
                now = int((folder / used).read_text())
                yield MemoryLimit(limit, now - _figure(folder / "memory.stat", cached))
        except (OSError, ValueError):  # no such file, or the word `max`
            continue


def _figure(file: Path, name: str) -> int:
    """A figure of a file of names and numbers; 0 where it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
