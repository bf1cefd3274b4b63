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


def killed_for_memory(of_process: Path = OF_PROCESS, mounted: Path = MOUNTED) -> int:
    """How many processes of this process's control group the kernel has killed because memory had
    run out, since the group was made; 0 where it does not count."""
    try:
        lines = of_process.read_text().splitlines()
    except OSError:
        return 0
    return max((_killed(line, mounted) for line in lines), default=0)


def _killed(line: str, mounted: Path) -> int:
    """By one line of the process's groups: the number of its own group, which those above add up
    with that of others."""
    if (found := _place(line, mounted)) is None:
        return 0
    base, group, is_second = found
    file = "memory.events" if is_second else "memory.oom_control"
    for each in (group, *group.parents):
        if (told := base / str(each).lstrip("/") / file).exists():
            return _figure(told, "oom_kill")
    return 0


def _place(line: str, mounted: Path) -> tuple[Path, PurePosixPath, bool] | None:
    """Where the group of a line is: its hierarchy, its path there, and whether that is of the
    second version; None: it says nothing of memory."""
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if number == "0" and not controllers:
        return mounted, PurePosixPath(path), True
    if "memory" in controllers.split(","):
        return mounted / "memory", PurePosixPath(path), False
    return None


def _limits(line: str, mounted: Path) -> Iterator[MemoryLimit]:
    """Of one line of the process's groups: the limits of its group, and of those above."""
    if (found := _place(line, mounted)) is None:
        return
    base, group, is_second = found
    most, used, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    if is_second:
        most, used, prefix = "memory.max", "memory.current", ""
    for each in (group, *group.parents):
        folder = base / str(each).lstrip("/")
        try:
            limit = int((folder / most).read_text())
            if limit < NONE:
                now = int((folder / used).read_text())
                # Pages of files. Those used more than once are "active": dropped, too, if need be.
                files = (f"{prefix}inactive_file", f"{prefix}active_file")
                droppable = sum(_figure(folder / "memory.stat", name) for name in files)
                yield MemoryLimit(limit, now - droppable)
        except (OSError, ValueError):  # no such file, or the word `max`
            continue


def _figure(file: Path, name: str) -> int:
    """A figure of a file of names and numbers; 0 where it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
