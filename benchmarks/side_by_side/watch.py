"""Run a command and measure its whole process tree from outside.

* CPU: what the kernel counted for every process of the tree when its parent took its exit. This
  process becomes the reaper of orphans, so one that outlives its parent (Spark's JVM outlives
  the interpreter that started it) is counted too. A parent that ignores SIGCHLD (the daemon of
  Spark's Python workers does) takes no exits and the kernel adds nothing up: of such children
  the last sample counts, at most one interval short.
* Memory: sampled. Of every process the private and its part of the shared pages (PSS) that are
  anonymous or of files; plus the bytes of the folders on tmpfs that the program keeps state in.
  Pages of those files that a process has mapped are not counted a second time. The page cache
  of files on disk is not counted for anybody.

Invariant: `watched` returns or raises only when no process that the command started is left.

Processes that this one had started before are left alone, and what they start.

Known limitation: only one command is watched at a time, and meanwhile nothing else in this
process may start children. A peak shorter than the sampling interval can be missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

LOOK_S = 0.2
"""How often the processes and their CPU seconds are looked at."""
SAMPLE_S = 1.0
"""How often their memory is: the kernel walks every page for it, a 20th of a core at 0.2 s."""
END_S = 30.0
"""How long a command's other processes may live on after it."""
_PR_SET_CHILD_SUBREAPER = 36


class ProgramFailed(RuntimeError):
    """A measured command ended with an error; the message has the end of its log."""


@dataclass(frozen=True)
class Sample:
    """Memory at one moment. Bytes; `at_s` in seconds since 1970."""

    at_s: float
    process_bytes: int
    tmpfs_bytes: int


@dataclass(frozen=True)
class Watched:
    """What a command cost. Times in seconds, `*_at_s` in seconds since 1970."""

    started_at_s: float
    ended_at_s: float
    """When the command itself had ended."""
    cpu_s: float
    """User and system time of every process of the tree."""
    other_cpu_s: float
    """The same of the processes that were named as others (the broker), meanwhile."""
    samples: tuple[Sample, ...] = field(repr=False)

    @property
    def wall_s(self) -> float:
        """From start to end."""
        return self.ended_at_s - self.started_at_s

    @property
    def peak_bytes(self) -> int:
        """Greatest sum of processes and tmpfs."""
        return max((s.process_bytes + s.tmpfs_bytes for s in self.samples), default=0)

    @property
    def peak_process_bytes(self) -> int:
        """Greatest sum of the processes' memory."""
        return max((s.process_bytes for s in self.samples), default=0)

    @property
    def peak_tmpfs_bytes(self) -> int:
        """Greatest size of the state folders."""
        return max((s.tmpfs_bytes for s in self.samples), default=0)


def watched(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    tmpfs: Sequence[Path] = (),
    others: Collection[int] = (),
    timeout_s: float = 3600.0,
    until: Callable[[], bool] | None = None,
) -> Watched:
    """Run `command` to its end.

    Args:
        command: program and arguments.
        env: its whole environment.
        cwd: its working directory.
        log: file that its output is appended to.
        tmpfs: folders whose files count as memory.
        others: ids of processes that work for the command (the broker's): their CPU time is told
            apart.
        timeout_s: after this long it is ended and counted as failed.
        until: asked while the command runs; once it holds, the command is sent SIGTERM and is to
            end by itself. What it raises ends the command, too.

    Raises ProgramFailed when it ends with another code than 0, or too late.
    """
    _adopt_orphans()
    before, other_before = _reaped_cpu_s(), _cpu_s(others)
    strangers = frozenset(p.pid for p in psutil.Process().children()) | frozenset(others)
    samples: list[Sample] = []
    unseen = _Unseen()
    started = time.time()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        late = told = False
        while process.poll() is None:
            tree = _tree(strangers)
            unseen.look(tree)
            if not samples or time.time() - samples[-1].at_s >= SAMPLE_S:
                samples.append(_sample(tree, tmpfs))
            if time.time() - started > timeout_s:
                late = True
                break
            if until is not None and not told and until():
                process.send_signal(signal.SIGTERM)
                told = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
        ended = time.time()
        if not late:
            _wait_for_rest(strangers, unseen)
    finally:
        _end_rest(process, strangers, unseen)
    if late or process.returncode != 0:
        reason = f"took over {timeout_s:.0f} s" if late else f"ended with {process.returncode}"
        raise ProgramFailed(f"{' '.join(command)} {reason}. The end of {log}:\n{_tail(log)}")
    return Watched(
        started_at_s=started,
        ended_at_s=ended,
        cpu_s=_reaped_cpu_s() - before + unseen.cpu_s(),
        other_cpu_s=_cpu_s(others) - other_before,
        samples=tuple(samples),
    )


def _adopt_orphans() -> None:
    """Become the parent of processes whose parent ends (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reaped_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_s(pids: Collection[int]) -> float:
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total


def _tree(strangers: Collection[int]) -> list[psutil.Process]:
    """Living descendants of this process, without the strangers and theirs."""
    strange = set(strangers)
    for pid in strangers:
        with contextlib.suppress(psutil.NoSuchProcess):
            strange |= {p.pid for p in psutil.Process(pid).children(recursive=True)}
    found = psutil.Process().children(recursive=True)
    return [p for p in found if p.pid not in strange]


def _sample(tree: Sequence[psutil.Process], tmpfs: Sequence[Path]) -> Sample:
    now = time.time()
    return Sample(now, sum(_pss_bytes(p.pid) for p in tree), sum(map(_size, tmpfs)))


def _pss_bytes(pid: int) -> int:
    """Anonymous and file pages of a process, shared ones by share; 0 when it has just ended."""
    total = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Pss_Anon:", "Pss_File:")):
                total += int(line.split()[1]) * 1024
    return total


def _size(folder: Path) -> int:
    """Bytes that the files under a folder occupy."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += _size(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _wait_for_rest(strangers: Collection[int], unseen: _Unseen) -> None:
    """Wait until the command's processes have ended, and take their exits (and CPU times)."""
    deadline = time.monotonic() + END_S
    while (left := _tree(strangers)) and time.monotonic() < deadline:
        unseen.look(left)
        _reap(left, unseen)
        time.sleep(0.02)


def _end_rest(
    process: subprocess.Popen[bytes], strangers: Collection[int], unseen: _Unseen
) -> None:
    """End what is left, by process id."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _tree(strangers)
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)
        deadline = time.monotonic() + 10.0
        while left and time.monotonic() < deadline:
            process.poll()
            _reap(left, unseen)
            left = _tree(strangers)
            time.sleep(0.05)
    process.wait()


def _reap(processes: Sequence[psutil.Process], unseen: _Unseen) -> None:
    for each in processes:
        with contextlib.suppress(ChildProcessError):
            pid, _ = os.waitpid(each.pid, os.WNOHANG)
            if pid:
                unseen.reaped(pid)


class _Stat(NamedTuple):
    """Some of /proc/PID/stat."""

    parent: int
    cpu_s: float
    started: int


class _Unseen:
    """CPU times of processes whose parents ignore SIGCHLD: nobody takes their exits.

    One that is orphaned becomes our own child and is reaped after all; then it is left out here.
    """

    def __init__(self) -> None:
        self._cpu_s: dict[tuple[int, int], float] = {}

    def look(self, tree: Sequence[psutil.Process]) -> None:
        """Take a sample."""
        for each in tree:
            stat = _stat(each.pid)
            if stat is None:
                continue
            key = (each.pid, stat.started)
            if key in self._cpu_s or _ignores_children(stat.parent):
                self._cpu_s[key] = stat.cpu_s

    def reaped(self, pid: int) -> None:
        """The exit of a process was taken here, so the kernel has added up its time."""
        self._cpu_s = {key: value for key, value in self._cpu_s.items() if key[0] != pid}

    def cpu_s(self) -> float:
        """Seconds of all of them."""
        return sum(self._cpu_s.values())


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; what follows it is fixed.
    fields = text.rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return _Stat(int(fields[1]), (int(fields[11]) + int(fields[12])) / ticks, int(fields[19]))


def _ignores_children(pid: int) -> bool:
    """Whether a process ignores SIGCHLD."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def _tail(log: Path, lines: int = 25) -> str:
    text = log.read_text(errors="replace").strip().splitlines()
    return "\n".join("  " + line for line in text[-lines:])
