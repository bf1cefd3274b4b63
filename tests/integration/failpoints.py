"""The command line with failpoints: `python -m tests.integration.failpoints stream ...`.

Failpoints exist only here. `FAILPOINT=name:n[:action]` lets the process do `action` (`kill`, the
default, or `stop`: SIGSTOP) when the named point of an epoch is reached for the n-th time. Points
of the driver are patched around its methods. `WORKER_FAILPOINTS=name:epoch[:executor],...` names
points of workers: each kills its Python worker (or the executor above it) from that epoch on,
once. A file in the folder `FAILPOINT_MARKERS` remembers that it did.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

DRIVER_POINTS = (
    "before-claim",
    "after-claim",
    "before-job",
    "after-job",
    "after-sync",
    "after-append",
    "after-apply-spill",
    "after-apply-results",
)
WORKER_POINTS = ("in-decode", "before-step", "in-step", "after-step")


def _fire(action: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


class _Point:
    def __init__(self, text: str) -> None:
        name, _, rest = text.partition(":")
        count, _, action = rest.partition(":")
        self.name, self.left, self.action = name, int(count or 1), action or "kill"

    def reached(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left == 0:
                _fire(self.action)


def _around(
    owner: Any, method: str, before: Callable[..., None], after: Callable[..., None]
) -> None:
    original = getattr(owner, method)

    def patched(self: Any, *arguments: Any) -> Any:
        before(*arguments)
        answer = original(self, *arguments)
        after(*arguments)
        return answer

    setattr(owner, method, patched)


def _nothing(*_: Any) -> None:
    pass


def arm_driver(text: str) -> None:
    """Patch the driver so that it fails at a named point."""
    from jobs.stream.driver import Driver

    point = _Point(text)

    def appended(instruction: Any) -> None:
        point.reached("after-claim" if instruction.entry.kind == "claim" else "after-append")

    def appending(instruction: Any) -> None:
        if instruction.entry.kind == "claim":
            point.reached("before-claim")

    _around(Driver, "append", appending, appended)
    _around(
        Driver,
        "run_job",
        lambda *_: point.reached("before-job"),
        lambda *_: point.reached("after-job"),
    )
    _around(Driver, "sync", _nothing, lambda *_: point.reached("after-sync"))
    _around(
        Driver,
        "apply",
        _nothing,
        lambda instruction: point.reached(f"after-apply-{instruction.table}"),
    )


def _once(name: str, epoch: int) -> None:
    """In a worker: kill this process the first time that an armed point is reached."""
    points = [text.split(":") for text in os.environ["WORKER_FAILPOINTS"].split(",")]
    armed = next((point for point in points if point[0] == name), None)
    if armed is None or epoch < int(armed[1]):
        return
    marker = Path(os.environ["FAILPOINT_MARKERS"]) / f"fired-{name}"
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    target = os.getpid()
    if armed[2:] == ["executor"]:
        # The worker's ancestors: the daemon, then the executor's JVM.
        import psutil

        target = next(p.pid for p in psutil.Process().parents() if "java" in p.name())
    os.kill(target, signal.SIGKILL)
    time.sleep(30)


def step_batches(job: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """`jobs.stream.worker.step_batches` with failpoints."""
    from jobs.engine import step as engine
    from jobs.stream import worker

    epoch = next(iter(job.tasks.values())).epoch
    _once("before-step", epoch)
    original = engine.step

    def step(*arguments: Any, **named: Any) -> Any:
        report = original(*arguments, **named)
        _once("in-step", epoch)
        return report

    worker.step = step  # type: ignore[attr-defined]
    try:
        yield from worker.step_batches(job, batches)
    finally:
        worker.step = original  # type: ignore[attr-defined]
    _once("after-step", epoch)


def decode_batches(task: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """`jobs.stream.worker.decode_batches` with a failpoint."""
    from jobs.stream import worker

    for batch in worker.decode_batches(task, batches):
        yield batch
        _once("in-decode", 0)  # a decode task does not know its epoch


def main() -> None:
    """Arm what the environment names and run the command line."""
    if text := os.environ.get("FAILPOINT"):
        arm_driver(text)
    if os.environ.get("WORKER_FAILPOINTS"):
        from jobs.stream import job

        job.step_batches = step_batches
        job.decode_batches = decode_batches
    from jobs.cli import main as command_line

    command_line(sys.argv[1:])


if __name__ == "__main__":
    # The workers import this module by its name, so the patched functions must live under it.
    from tests.integration import failpoints

    failpoints.main()
