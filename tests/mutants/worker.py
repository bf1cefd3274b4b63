"""Runs tests in a mutated copy of the tree: the process that `tests.mutants.sample` starts there.

It loads the libraries and our modules once, and forks for each piece of work: a test file, to see
which functions each of its tests calls, or a mutant, to see whether a test fails. Its argument is a
file of JSON; it answers with a line of JSON for each piece that ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from mutmut.mutation import trampoline

from tests.packages import PACKAGES

FAST = ("-q", "-m", "not server and not soak", "-p", "no:cacheprovider", "-p", "no:xdist")
MEMORY = 16 * 2**30
"""Of addresses; a mutant that asks for everything ends alone."""
HITS: set[str] = set()


class NoShrinking:
    """A failing example is enough: nobody reads it."""

    def pytest_sessionstart(self) -> None:
        noticed = [phase for phase in settings.default.phases if phase != Phase.shrink]
        settings.register_profile("mutants", parent=settings.default, phases=noticed)
        settings.load_profile("mutants")


class Reach:
    """What each test calls, how much of the processor's time it takes, and whether it passes."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self.failed: set[str] = set()
        self.loading: set[str] = set()
        self.fixtures: dict[Any, set[str]] = {}

    def pytest_collection_finish(self) -> None:
        self.loading = set(HITS)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        HITS.clear()
        began = time.process_time()
        yield
        mine = self.loading | HITS
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            # A fixture of a module is set up in its first test, and all of them see what it made.
            mine = mine.union(*(self.fixtures.get(each, ()) for each in definitions))
        self.tests[item.nodeid] = (time.process_time() - began, sorted(mine))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = set(HITS)
        HITS.clear()
        yield
        if fixturedef.scope != "function":
            self.fixtures[fixturedef] = set(HITS)
        HITS.update(before)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:  # Skipped: it says nothing here.
            self.failed.add(report.nodeid)


class Chosen:
    """Of what pytest has found only these tests, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {name: i for i, name in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place),
            key=lambda item: self.place[item.nodeid],
        )


def warm() -> None:
    """Load the libraries and our modules, and start nothing.

    Tests are loaded in the forks: some compile a query when they are loaded, and a thread that
    polars starts for that would be missing in a fork.
    """
    for folder in ("schemas", "jobs"):
        for path in sorted(Path(folder).rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
    gc.collect()
    gc.freeze()


def forked(work: Callable[[], int]) -> int:
    """Start work in a process group of its own: its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setpgrp()
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = work()
    finally:
        os._exit(code)


def reach(file: str, answer: Path, folder: Path) -> int:
    """In the fork: run a test file, write `{"tests": {test: [seconds, functions]}, "failed"}`."""
    trampoline.set_mutant_under_test("stats")
    HITS.clear()
    seen = Reach()
    pytest.main([*FAST, f"--basetemp={folder}", file], plugins=[NoShrinking(), seen])
    answer.write_text(json.dumps({"tests": seen.tests, "failed": sorted(seen.failed)}))
    return 0


def attempt(mutant: str, tests: Sequence[str], cpu_s: int, anew: bool, folder: Path) -> int:
    """In the fork: run tests with one mutant, until one fails. `anew`: load our modules with it."""
    trampoline.set_mutant_under_test(mutant)
    for name in [n for n in sys.modules if anew and n.split(".")[0] in PACKAGES]:
        del sys.modules[name]
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_s, used + cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    options = [*FAST, "-x", "--tb=no", f"--basetemp={folder}"]
    files: dict[str, list[str]] = {}
    for name in tests:
        files.setdefault(name.partition("::")[0], []).append(name)
    for file, mine in files.items():  # Each is loaded when the ones before have passed.
        code = int(pytest.main([*options, file], plugins=[NoShrinking(), Chosen(mine)]))
        if code:
            return code
    return 0


def serve(work: Sequence[dict[str, Any]], jobs: int) -> None:
    """Do work in forks; print a line for each when it ends: `{"name", "code", "seconds"}`."""
    scratch = Path(tempfile.mkdtemp(prefix="spillway-mutants-"))
    waiting = list(reversed(work))
    running: dict[int, tuple[str, float, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            each = waiting.pop()
            folder = scratch / str(len(waiting))
            if "answer" in each:
                do = partial(reach, each["name"], Path(each["answer"]), folder)
            else:
                do = partial(
                    attempt, each["name"], each["tests"], each["cpu_s"], each["anew"], folder
                )
            pid = forked(do)
            now = time.monotonic()
            running[pid] = (each["name"], now, now + each["wall_s"])
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            for late in [p for p, (_, _, end) in running.items() if time.monotonic() > end]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(late, signal.SIGXCPU)
            time.sleep(0.02)
            continue
        if pid not in running:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what tests have left
        name, began, _ = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        answer = {"name": name, "code": code, "seconds": time.monotonic() - began}
        print(json.dumps(answer), flush=True)
    shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Do the work of one call."""
    given = json.loads(Path(sys.argv[1]).read_text())
    trampoline.record_trampoline_hit = lambda name, caller=None: HITS.add(name)
    trampoline.set_mutant_under_test("stats")
    os.environ["MUTMUT_DEPENDENCY_DEPTH"] = "-1"
    warm()
    print(json.dumps({"at_import": sorted(HITS)}), flush=True)
    serve(given["work"], given["jobs"])


if __name__ == "__main__":
    main()
