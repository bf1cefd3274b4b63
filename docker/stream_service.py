"""The streaming service of one container, which Airflow starts and stops from another.

Model: two containers share a folder. In the stream's, `run` keeps `spillway stream` going and holds
the lock of `stream.lock` while one runs; a file `stopped` says that none shall run. In Airflow's,
`start`, `stop` and `status` write that file and look at that lock: they are the commands of
`[spillway] launcher = command`. So no container needs the engine's socket, which is root's.

Invariants: the kernel takes a lock back from a process that is gone, so `status` never tells of a
stream that has been killed. What Airflow has stopped stays stopped, also after a restart of the
container, until Airflow starts it. Nothing here matters for exactness: that is the journal's.

Failure paths: a stream that ends by itself is started again after `AGAIN_S`. One that does not end
within `END_S` of SIGTERM is killed, with everything in its process group. When `run` is killed, its
container ends with it, and the engine starts that again.

Known limitation: a lock reaches as far as one kernel, so both containers run on one host. On
Kubernetes the launcher is `kubernetes`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/srv/service")
STREAM = ("spillway", "stream")
POLL_S = 0.2
AGAIN_S = 10.0
"""Between the end of a stream that was not asked to end, and the next."""
END_S = 90.0
"""How long a stream may take to end its epoch."""
PATIENCE_S = 110.0
"""How long `start` and `stop` wait: longer than `END_S`, shorter than the launcher does."""


@dataclass(frozen=True)
class Service:
    """The shared folder."""

    folder: Path

    @property
    def stopped(self) -> Path:
        """The file that says that no stream shall run."""
        return self.folder / "stopped"

    def is_wanted(self) -> bool:
        """Whether a stream shall run."""
        return not self.stopped.exists()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock that says that a stream runs."""
        with open(self.folder / "stream.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def is_running(self) -> bool:
        """Whether a stream runs: whether its lock is held."""
        with open(self.folder / "stream.lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False


def run(service: Service, program: Sequence[str]) -> None:
    """Keep the stream going, while it is wanted, until SIGTERM or SIGINT."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())

    def may_go_on() -> bool:
        return service.is_wanted() and not ending.is_set()

    while not ending.is_set():
        if not service.is_wanted():
            ending.wait(POLL_S)
            continue
        with service.held():
            code = _attend(program, may_go_on)
        if may_go_on():
            print(f"the stream has ended with {code}; again in {AGAIN_S:g} s", flush=True)
            _wait(lambda: not may_go_on(), AGAIN_S)


def _attend(program: Sequence[str], may_go_on: Callable[[], bool]) -> int:
    """Run a program until it ends or must; its exit code."""
    process = subprocess.Popen(program, stdin=subprocess.DEVNULL, start_new_session=True)
    _wait(lambda: process.poll() is not None or not may_go_on())
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                # SIGTERM is for the stream alone: it ends its JVM itself, after its epoch.
                (os.kill if number == signal.SIGTERM else os.killpg)(process.pid, number)
            _wait(lambda: process.poll() is not None, END_S)
    return process.wait()


def _wait(done: Callable[[], bool], seconds: float = float("inf")) -> bool:
    """Look until it is done; False when that took too long."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


def start(service: Service) -> str:
    """Want a stream, and wait until one runs. Raises TimeoutError."""
    service.stopped.unlink(missing_ok=True)
    if not _wait(service.is_running, PATIENCE_S):
        raise TimeoutError("nobody starts the stream: does its container run?")
    return "the stream runs"


def stop(service: Service) -> str:
    """Want no stream, and wait until none runs. Raises TimeoutError."""
    service.stopped.touch()
    if not _wait(lambda: not service.is_running(), PATIENCE_S):
        raise TimeoutError("the stream does not end: see its container's log")
    return "the stream has ended"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 yes or done, 1 no, 3 not done in time."""
    parser = argparse.ArgumentParser(description="The streaming service of a container.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="shared by both containers")
    parser.add_argument("verb", choices=("run", "start", "stop", "status", "health"))
    parser.add_argument("program", nargs="*", help="of `run`, instead of `spillway stream`")
    given = parser.parse_args(arguments)
    service = Service(given.folder)
    if given.verb == "run":
        run(service, given.program or STREAM)
        return 0
    if given.verb in ("start", "stop"):
        try:
            print((start if given.verb == "start" else stop)(service))
        except TimeoutError as error:
            print(error, file=sys.stderr)
            return 3
        return 0
    running, wanted = service.is_running(), service.is_wanted()
    print(f"{'running' if running else 'not running'}, {'wanted' if wanted else 'stopped'}")
    return 0 if running or (given.verb == "health" and not wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
