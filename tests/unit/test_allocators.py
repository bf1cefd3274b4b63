"""The driver's memory: few arenas, one allocator, and what nobody uses given back."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spillway.allocators import ARENAS, uncollected
from tests.missing import without
from tests.packages import source_paths

ROOT = Path(__file__).resolve().parents[2]


ARENAS_OF_EIGHT_THREADS = """
import ctypes, os, sys, threading
from spillway.allocators import few_arenas
if "few" in sys.argv:
    assert few_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)
def take():
    together.wait()
    libc.malloc(100)
    together.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.parametrize(("words", "few"), [(["few"], True), ([], False)])
def test_a_stream_s_threads_share_few_arenas(words: list[str], few: bool) -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        without("glibc", "malloc is another's here")
    command = [sys.executable, "-c", ARENAS_OF_EIGHT_THREADS, *words]
    env = {**os.environ, "PYTHONPATH": ":".join(source_paths(str(ROOT)))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    arenas = done.stdout.count("<heap nr=")
    assert (arenas <= ARENAS) == few, arenas


POOL = """
import os, sys
from {entry} import main
sys.argv = ["spillway", "--set", "query=./none.toml", "stream"]
try:
    main()
except SystemExit as ended:
    assert ended.code == 2, "there is no such query"
import pyarrow
print(pyarrow.default_memory_pool().backend_name, os.environ.get("ARROW_DEFAULT_MEMORY_POOL"))
"""


@pytest.mark.server
@pytest.mark.parametrize("asked", [None, "mimalloc"])
def test_a_stream_s_driver_takes_memory_from_malloc_and_its_workers_do_not(
    asked: str | None,
) -> None:
    env = {**os.environ, "PYTHONPATH": ":".join(source_paths(str(ROOT)))}
    env.pop("ARROW_DEFAULT_MEMORY_POOL", None)
    env |= {} if asked is None else {"ARROW_DEFAULT_MEMORY_POOL": asked}
    command = [sys.executable, "-c", POOL.format(entry="spillway.cli")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [asked or "system", str(asked)]


@pytest.mark.server
@pytest.mark.parametrize(
    "armed",
    [
        {},
        {"KEEP_LOG_S": "60"},
        {"FAILPOINT": "before-job:1"},
        {"WORKER_FAILPOINTS": "in-step:3"},
        {"WORKER_PAUSE_S": "1"},
        {"PROCESSES": "always"},
    ],
    ids=lambda armed: next(iter(armed), "nothing"),
)
def test_a_driver_of_the_long_tests_takes_memory_as_a_user_s_does(armed: dict[str, str]) -> None:
    """Kills: a failpoint armed before the command. It imports pyarrow, and the pool is chosen."""
    env = {**os.environ, "PYTHONPATH": ":".join(source_paths(str(ROOT))), **armed}
    env.pop("ARROW_DEFAULT_MEMORY_POOL", None)
    command = [sys.executable, "-c", POOL.format(entry="tests.integration.failpoints")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["system", "None"]


HELD_BELOW_WHAT_STAYS = """
import ctypes, os
from spillway.allocators import give_back
from spillway.processes import stat_fields
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
resident = lambda: int(stat_fields(os.getpid())[21]) * os.sysconf("SC_PAGE_SIZE") >> 20
pieces = [libc.malloc(100_000) for _ in range(1000)]
for piece in pieces:
    ctypes.memset(piece, 1, 100_000)
stays = libc.malloc(100_000)
for piece in pieces:
    libc.free(piece)
before = resident()
assert give_back()
print(before - resident())
"""


def test_what_nobody_uses_is_given_back() -> None:
    """Kills: no call of malloc_trim. 95 MiB lie below one piece that stays."""
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        without("glibc", "malloc is another's here")
    env = {**os.environ, "PYTHONPATH": ":".join(source_paths(str(ROOT)))}
    command = [sys.executable, "-c", HELD_BELOW_WHAT_STAYS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_looked_for_and_then_as_before(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_garbage_is_looked_for_again_once_the_last_thread_has_left() -> None:
    """However they overlap: the first to leave may not be the first that came."""
    was = gc.isenabled()
    gc.enable()
    try:
        first, second = uncollected(), uncollected()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not gc.isenabled()
        with uncollected():
            second.__exit__(None, None, None)
            assert not gc.isenabled()
        assert gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()
