"""The command line with failpoints: `python -m tests.integration.failpoints stream ...`.

Failpoints exist only here. `FAILPOINT=name:n[:action]` lets the process do `action` (`kill`, the
default, or `stop`: SIGSTOP) when the named point of an epoch is reached for the n-th time. Points
of the driver are patched around its methods. `WORKER_FAILPOINTS=name:epoch[:executor],...` names
points of workers: each kills its Python worker (or the executor above it) from that epoch on,
once. `next` in place of an epoch: from the epoch after that in which the point before it in the
list did. A file in the folder `FAILPOINT_MARKERS` remembers that it did, and in which epoch.

Points of a relocation are reached only in an epoch that moves groups: those of the driver are
its other points with `moving-` before them (and rows must come in the epoch), those of workers
belong to the slot that gives (`SENDER_POINTS`) or to the one that gets (`RECEIVER_POINTS`). With
`FAILPOINT_AFTER=name` the driver's point counts from when that point has fired.

`WORKER_PAUSE_S=seconds` makes a step rest so long, once (marker `fired-pause`).

`KEEP_LOG_S=seconds` keeps entries of tables' logs, and what they say of removed files, only so
long: for days that take minutes.

`PROCESSES=always` lets cleanup and `verify` start processes however little there is to do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
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
CLEANUP_POINTS = ("before-deferred", "after-deferred")
"""Of a cleanup: what slots had lost is written and not committed; it is."""
MOVING = "moving-"
MOVING_POINTS = tuple(MOVING + point for point in DRIVER_POINTS if not point.endswith("-claim"))
"""Of the driver, in an epoch in which groups move and rows come."""
WORKER_POINTS = ("in-decode", "before-step", "in-step", "after-step")
TREE_POINTS = ("in-probe", "after-probe")
"""Of workers, of a tree of joins: a block of what a join gave is handed on; all of them are."""
SENDER_POINTS = ("before-extract", "in-extract", "after-extract", "sender-in-step")
"""Before the state is read; one file or block of it is given; all are; the step without it is
done."""
RECEIVER_POINTS = (
    "before-install",
    "after-install",
    "receiver-in-step",
    "receiver-after-step",
)
"""Blocks and files have come; they are installed, nothing is written; the step is done, its
report not given; it is given."""


def fired(folder: Path, name: str) -> int | None:
    """The epoch in which a point has fired; None: it has not (or this is being written)."""
    marker = folder / f"fired-{name}"
    text = marker.read_text() if marker.exists() else ""
    return int(text) if text else None


def _mark(name: str, epoch: int) -> bool:
    """Remember that a point fires; False when it has before."""
    marker = Path(os.environ["FAILPOINT_MARKERS"]) / f"fired-{name}"
    try:
        handle = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(handle, str(epoch).encode())
    os.close(handle)
    return True


def _has_fired(name: str, before: int | None = None) -> bool:
    """Whether a point has fired, in an epoch before one that is given."""
    epoch = fired(Path(os.environ["FAILPOINT_MARKERS"]), name)
    return epoch is not None and (before is None or epoch < before)


def _fire(action: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


class _Point:
    def __init__(self, text: str) -> None:
        name, _, rest = text.partition(":")
        count, _, action = rest.partition(":")
        self.name, self.left, self.action = name, int(count or 1), action or "kill"
        self.after = os.environ.get("FAILPOINT_AFTER", "")
        self.plan: Any = None
        """Of the epoch that is worked on."""

    def reached(self, name: str) -> None:
        plan = self.plan
        moving = plan is not None and bool(plan.moved) and plan.start != plan.end
        if self.name not in (name, MOVING + name if moving else name):
            return
        if self.after and not _has_fired(self.after):
            return
        self.left -= 1
        if self.left == 0:
            if self.name.startswith(MOVING):
                _mark(self.name, self.plan.epoch)
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
    from spillway.stream.driver import StreamDriver
    from spillway.tables import Warehouse

    point = _Point(text)

    def appended(instruction: Any) -> None:
        point.reached("after-claim" if instruction.entry.kind == "claim" else "after-append")

    def appending(instruction: Any) -> None:
        if instruction.entry.kind == "claim":
            point.reached("before-claim")

    def planned(plan: Any, attempt: int) -> None:
        point.plan = plan
        point.reached("before-job")

    _around(StreamDriver, "append", appending, appended)
    _around(StreamDriver, "run_job", planned, lambda *_: point.reached("after-job"))
    _around(StreamDriver, "sync", _nothing, lambda *_: point.reached("after-sync"))
    _around(
        StreamDriver,
        "apply",
        _nothing,
        lambda instruction: point.reached(f"after-apply-{instruction.table}"),
    )
    before, after = (functools.partial(_reach, point, name) for name in CLEANUP_POINTS)
    _around(Warehouse, "apply_deferred", before, after)


def _reach(point: _Point, name: str, *_: Any) -> None:
    point.reached(name)


def _once(name: str, epoch: int) -> None:
    """In a worker: kill this process the first time that an armed point is reached."""
    points = [text.split(":") for text in os.environ["WORKER_FAILPOINTS"].split(",")]
    at = next((i for i, point in enumerate(points) if point[0] == name), None)
    if at is None:
        return
    since, target = points[at][1], os.getpid()
    if not (_has_fired(points[at - 1][0], epoch) if since == "next" else epoch >= int(since)):
        return
    if not _mark(name, epoch):
        return
    if points[at][2:] == ["executor"]:
        # The worker's ancestors: the daemon, then the executor's JVM.
        import psutil

        target = next(p.pid for p in psutil.Process().parents() if "java" in p.name())
    os.kill(target, signal.SIGKILL)
    time.sleep(30)


@contextlib.contextmanager
def _replaced(owner: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """A module with other functions for a while."""
    before = {name: getattr(owner, name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


def extract_batches(job: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """`spillway.stream.worker.extract_batches` with failpoints: the sender of a relocation."""
    from spillway.engine import relocation
    from spillway.stream import worker

    original, shelf = worker.extract, relocation.RunWriter

    class RunWriter(shelf):  # type: ignore[misc, valid-type]
        def write(self, *arguments: Any) -> None:
            super().write(*arguments)
            _once("in-extract", self.epoch)

    def extract(spec: Any, task: Any, *places: Any) -> Iterator[Any]:
        _once("before-extract", task.epoch)
        for number, block in enumerate(original(spec, task, *places)):
            yield block
            if number == 0:
                _once("in-extract", task.epoch)
        _once("after-extract", task.epoch)

    with _replaced(worker, extract=extract), _replaced(relocation, RunWriter=RunWriter):
        yield from worker.extract_batches(job, batches)


def step_batches(job: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """`spillway.stream.worker.step_batches` with failpoints; both ends of a relocation have one."""
    from spillway.engine import probe as engine
    from spillway.stream import worker

    epoch = next(iter(job.tasks.values())).epoch
    _once("before-step", epoch)
    original_step, original_adopt = worker.step, engine.adopt
    tasks: list[Any] = []

    def once(name: str, *, sender: bool) -> None:
        if tasks and (tasks[0].leaving if sender else tasks[0].arriving):
            _once(name, epoch)

    def adopt(*arguments: Any) -> None:
        original_adopt(*arguments)
        once("after-install", sender=False)

    def step(spec: Any, task: Any, *arguments: Any) -> Any:
        tasks.append(task)
        once("before-install", sender=False)
        report = original_step(spec, task, *arguments)
        _once("in-step", epoch)
        once("sender-in-step", sender=True)
        once("receiver-in-step", sender=False)
        return report

    with _replaced(worker, step=step), _replaced(engine, adopt=adopt):
        yield from worker.step_batches(job, batches)
    _once("after-step", epoch)
    once("receiver-after-step", sender=False)


def probe_batches(job: Any, level: int, batches: Iterable[Any]) -> Iterator[Any]:
    """`spillway.stream.worker.probe_batches` with failpoints."""
    from spillway.stream import worker

    epoch = next(iter(job.tasks.values())).epoch
    for batch in worker.probe_batches(job, level, batches):
        yield batch
        _once("in-probe", epoch)
    _once("after-probe", epoch)


def pausing_step_batches(job: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """`spillway.stream.worker.step_batches`, the first time after a rest."""
    from spillway.stream import worker

    came = list(batches)
    if any(batch.num_rows for batch in came) and _mark("pause", 0):
        time.sleep(float(os.environ["WORKER_PAUSE_S"]))
    yield from worker.step_batches(job, came)


def decode_chunks(task: Any, chunks: Iterable[Any]) -> Iterator[Any]:
    """`spillway.stream.decoding.decode_chunks` with a failpoint."""
    from spillway.stream import decoding

    for batch in decoding.decode_chunks(task, chunks):
        yield batch
        _once("in-decode", 0)  # a decode task does not know its epoch


THEN = "--then"
"""Between two commands that run one after the other in this process, while they succeed."""


@functools.cache
def arm() -> None:
    """Arm what the environment names, once."""
    if text := os.environ.get("FAILPOINT"):
        arm_driver(text)
    if os.environ.get("WORKER_FAILPOINTS"):
        from spillway.stream import job

        job.step_batches = step_batches
        job.decode_chunks = decode_chunks
        job.extract_batches = extract_batches
        job.probe_batches = probe_batches
    if os.environ.get("WORKER_PAUSE_S"):
        from spillway.stream import job

        job.step_batches = pausing_step_batches
    if text := os.environ.get("KEEP_LOG_S"):
        from spillway.tables import log

        log.KEEP_S = float(text)
        log.REMOVED_KNOWN_S = int(text)
    if os.environ.get("PROCESSES"):
        from spillway.cleanup import workers
        from spillway.verify import processes

        workers.PROCESS_BYTES = processes.ROWS_A_PROCESS = 1


def main() -> None:
    """Run the command line, armed when the first command asks for its settings.

    Not before: arming imports pyarrow, and `spillway stream` chooses first whose memory that takes.
    """
    from spillway import cli
    from spillway.commands import given

    settings = given.settings

    def armed(**flags: object) -> Any:
        arm()
        return settings(**flags)

    given.settings = armed

    if text := os.environ.get("EXCHANGE_CLOCK"):
        clock = Path(text)
        given.clock = lambda: int(clock.read_text())

    for is_between, words in itertools.groupby(sys.argv[1:], THEN.__eq__):
        if not is_between:
            try:
                cli.main(list(words))
            except SystemExit as end:
                if end.code:
                    raise


if __name__ == "__main__":
    # The workers import this module by its name, so the patched functions must live under it.
    from tests.integration import failpoints

    failpoints.main()
