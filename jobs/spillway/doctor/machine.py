"""Checks of the machine: programs, packages, memory."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from spillway.doctor.check import Check
from spillway.engine.least import TOO_SMALL, least_budget
from spillway.jars import (
    JAVA_REMEDY,
    JarError,
    JavaError,
    java_version,
    lock_file,
    parse_lock,
    problems,
)
from spillway.places import checkout, var_folder
from spillway.report.words import bytes_text, times_text
from spillway_schemas.memory import killed_for_memory, memory_limits, most_memory
from spillway_schemas.query import Query
from spillway_schemas.settings import QUERIES, Settings

PACKAGES = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "deltalake": "1.6.6"}
"""Versions that were tried together; jars.lock goes with them."""
SPARE_MEMORY = 2 << 30
"""Bytes that Spark's JVM and the Python workers want besides the state."""
OPEN_FILES = 1024
SMALL_BUDGET = 2
"""Times the least budget below which a slot's memory is hardly any."""


def programs() -> Iterator[Check]:
    """Python, Java, jars, packages, limits."""
    yield judge_python(sys.version_info[:3])
    yield _java()
    yield _jars()
    yield _packages()
    yield _open_files()


def judge_python(version: tuple[int, ...]) -> Check:
    """Python 3.11 or newer."""
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Check("python", "ok", f"{text} ({sys.executable})")
    return Check(
        "python",
        "fail",
        text,
        "install Python 3.11 or newer and "
        + _where_it_runs("run 'make setup'", "install spillway with it"),
    )


def _where_it_runs(checkout_remedy: str, installed_remedy: str) -> str:
    """The remedy for a checkout, which has a Makefile, or the one for an installed package."""
    return installed_remedy if checkout() is None else checkout_remedy


def _java() -> Check:
    try:
        version, command = java_version()
    except JavaError as error:
        return Check("java", "fail", str(error), JAVA_REMEDY)
    return Check("java", "ok", f"{version} ({command})")


def _jars() -> Check:
    try:
        locked = parse_lock(lock_file().read_text())
        bad = problems(locked, var_folder())
    except (JarError, OSError) as error:
        return Check("jars", "fail", str(error), "run 'spillway setup'")
    return judge_jars([(jar.file, what) for jar, what in bad], len(locked), var_folder() / "jars")


def judge_jars(bad: Sequence[tuple[str, str]], locked: int, folder: Path) -> Check:
    """The jars of the lock are there as they were locked. `bad`: names, and what is wrong."""
    if not bad:
        return Check("jars", "ok", f"{locked} of jars.lock, verified by SHA-256")
    [name, what], remedy = bad[0], "run 'spillway setup'"
    if all(what == "missing" for _, what in bad):
        found = f"{len(bad)} of {locked} are not in {folder}: {name}"
    else:
        found = f"{len(bad)} of {locked} in {folder} are missing or altered: {name} {what}"
        remedy = f"remove {folder / '.locked'} and run 'spillway setup'"
    return Check("jars", "fail", found + (", ..." if len(bad) > 1 else ""), remedy)


def _packages() -> Check:
    found: dict[str, str | None] = {}
    for name in (*PACKAGES, "pyspark-client"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return judge_packages(PACKAGES, found)


def judge_packages(wanted: Mapping[str, str], found: Mapping[str, str | None]) -> Check:
    """The versions that were tried together, and nothing that overwrites pyspark."""
    if found.get("pyspark-client"):
        return Check(
            "packages",
            "fail",
            "pyspark-client is installed, which overwrites pyspark's files",
            "remove it, "
            + _where_it_runs(
                "remove .venv and run 'make setup'",
                f"run 'pip install --force-reinstall --no-deps pyspark=={wanted['pyspark']}'",
            ),
        )
    wrong = {name: locked for name, locked in wanted.items() if found.get(name) != locked}
    if wrong:
        return Check(
            "packages",
            "fail",
            ", ".join(f"{n} {found.get(n) or 'missing'} (locked: {v})" for n, v in wrong.items()),
            _where_it_runs(
                "run 'make setup' and use its .venv",
                f"run 'pip install {' '.join(f'{n}=={v}' for n, v in wrong.items())}'",
            ),
        )
    return Check("packages", "ok", ", ".join(f"{n} {v}" for n, v in wanted.items()))


def _open_files() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        return Check(
            "open files", "warn", f"the limit is {soft}", f"raise it: ulimit -n {OPEN_FILES * 4}"
        )
    return Check("open files", "ok", "unlimited" if soft < 0 else f"the limit is {soft}")


# ----------------------------------------------------------------------------------- memory


def file_system(path: Path) -> str:
    """Type of the file system that holds a path; `unknown` where the system does not say."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return "unknown"
    real = os.path.realpath(path)
    holding = [
        m for m in mounts if real == m.mountpoint or real.startswith(m.mountpoint.rstrip("/") + "/")
    ]
    best = max(holding, key=lambda m: len(m.mountpoint), default=None)
    return str(best.fstype) if best else "unknown"


def memory(settings: Settings, slots: int) -> Iterator[Check]:
    """All slots' budgets against what is free. `slots`: as many as there are, or will be."""
    root = Path(settings.state.root)
    if not settings.spark.master.startswith("local"):
        yield Check(
            "memory",
            "warn",
            f"state lies on the executors' hosts ({settings.spark.master}), not looked at",
            "see that each host has its slots x state.budget_bytes free in state.root",
        )
        return
    if "://" in settings.state.root:
        return  # said already, by the check of the folder
    used, root = _bytes_below(root), existing(root)
    if killed := killed_for_memory():
        yield judge_killed(killed)
    yield judge_memory(
        slots=slots,
        budget_bytes=int(settings.state.budget_bytes),
        free_bytes=shutil.disk_usage(root).free + used,
        in_memory=_is_memory(root),
        available_bytes=_available_memory(used),
    )


def room_for(roots: Sequence[str]) -> int:
    """Bytes that there are for the state of several queries in one file system: what it has taken
    already counts as free."""
    used = sum(_bytes_below(Path(root)) for root in roots)
    root = existing(Path(roots[0]))
    free = shutil.disk_usage(root).free + used
    return min(free, _available_memory(used)) if _is_memory(root) else free


def existing(root: Path) -> Path:
    """A folder, or the nearest one above it that exists."""
    while not root.exists() and root != root.parent:
        root = root.parent
    return root


def _is_memory(root: Path) -> bool:
    return file_system(root) in ("tmpfs", "ramfs")


def budget(settings: Settings, query: Query, slots: int) -> Check:
    """A slot's budget against what an epoch of this query needs at least. `slots`: see `memory`."""
    return judge_budget(
        budget_bytes=int(settings.state.budget_bytes),
        least_bytes=least_budget(
            query.joined_inputs,
            settings.state.groups * len(query.tree.joins),
            slots,
            settings.stream.max_rows_per_epoch,
        ),
    )


def judge_budget(*, budget_bytes: int, least_bytes: int) -> Check:
    """Whether a slot can hold the smallest epoch; if not, it would spill every row."""
    if least_bytes <= budget_bytes < SMALL_BUDGET * least_bytes:
        return Check(
            "budget",
            "warn",
            f"{bytes_text(budget_bytes)} a slot is little more than one epoch needs "
            f"({bytes_text(least_bytes)}): nearly every row will be spilled, and most results will "
            "wait for cleanup",
            "raise state.budget_bytes: 'spillway explain' estimates what the session's state takes",
        )
    if budget_bytes >= least_bytes:
        return Check(
            "budget",
            "ok",
            f"{bytes_text(budget_bytes)} a slot, for {bytes_text(least_bytes)} or more",
        )
    kib = -(-least_bytes // 1024)
    return Check(
        "budget",
        "fail",
        f"state.budget_bytes = {bytes_text(budget_bytes)} {TOO_SMALL}",
        f"set state.budget_bytes to {kib}KiB at the least; whatever shall stay in memory needs "
        "more. Fewer state.groups need less",
    )


def _bytes_below(root: Path) -> int:
    """Bytes of all files under a state folder, but for those of named queries, which have folders
    of their own in it; files may go while we look."""
    total = 0
    for folder, below, names in os.walk(root):
        if folder == str(root) and QUERIES in below:
            below.remove(QUERIES)
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _available_memory(used: int = 0) -> int:
    """Bytes of memory that can be had: the machine's, or less where a container is limited; what
    the state has taken (`used`) counts as free. Never more than there is in all: the state may
    be charged to another group than this process's."""
    available = int(psutil.virtual_memory().available)
    free = min([available, *(limit.free for limit in memory_limits())])
    return min(free + used, most_memory())


def judge_killed(killed: int) -> Check:
    """The kernel has killed processes of this control group for want of memory."""
    return Check(
        "killed",
        "warn",
        f"the kernel has killed a process here {times_text(killed, 'time')} because memory had run "
        f"out (all of this control group may have {bytes_text(most_memory())})",
        "lower state.budget_bytes, or give the container more memory",
    )


def judge_memory(
    *, slots: int, budget_bytes: int, free_bytes: int, in_memory: bool, available_bytes: int
) -> Check:
    """All slots' budgets against the state folder's file system, and memory where it is memory.

    `free_bytes` and `available_bytes` count what the state takes already as free.
    """
    needed = slots * budget_bytes
    asked = f"{slots} slots x {bytes_text(budget_bytes)} = {bytes_text(needed)}"
    fits = min(free_bytes, available_bytes) // 2 // slots
    lower = f"lower state.budget_bytes (to {bytes_text(fits)}, say), or " if fits else ""
    remedy = f"{lower}set state.root to a folder with more room"
    if needed > free_bytes:
        return Check(
            "memory", "fail", f"{asked}, but state.root has only {bytes_text(free_bytes)}", remedy
        )
    if in_memory and needed > available_bytes:
        return Check(
            "memory",
            "fail",
            f"{asked}, but only {bytes_text(available_bytes)} of memory are free",
            remedy,
        )
    if in_memory and needed + SPARE_MEMORY > available_bytes:
        return Check(
            "memory",
            "warn",
            f"{asked} leaves less than {bytes_text(SPARE_MEMORY)} of "
            f"{bytes_text(available_bytes)} to Spark",
            remedy,
        )
    return Check("memory", "ok", f"{asked} of {bytes_text(free_bytes)} in state.root")
