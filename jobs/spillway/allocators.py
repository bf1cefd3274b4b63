"""Memory: what a driver that runs for weeks takes and gives back; when garbage is looked for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator

M_ARENA_MAX = -8
"""Of glibc's `mallopt`."""
ARENAS = 2
_POOL = "ARROW_DEFAULT_MEMORY_POOL"


_uncollected: list[bool] = []
"""Per user of `uncollected` at this moment, whether garbage was looked for before the first."""
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage while much is made that stays.

    The read model of a year sets off many: a look at 250 sessions took 85 ms with them, 61 without.
    Threads may use it at once: who leaves last lets garbage be looked for again.
    """
    with _one_at_a_time:
        _uncollected.append(_uncollected[0] if _uncollected else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _one_at_a_time:
            wanted = _uncollected.pop()
            if wanted and not _uncollected:
                gc.enable()


def few_arenas() -> bool:
    """Let threads share `ARENAS` of malloc's arenas; False where malloc is not glibc's.

    Call it before threads begin. A stream starts its query again with every change of its intake,
    each time with new threads; with an arena for each the driver grew by 12 MiB a session.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_ARENA_MAX, ARENAS))


def one_allocator() -> bool:
    """Let Arrow take memory from malloc; False where it has begun with another pool.

    Arrow's own pool keeps for each thread what that had, and `give_back` does not reach it. Call it
    before pyarrow is imported: afterwards it changes nothing. What the user asked for stands
    (`ARROW_DEFAULT_MEMORY_POOL`), and programs that this one starts do not inherit the choice.
    """
    if _POOL in os.environ:
        return False
    os.environ[_POOL] = "system"
    try:
        import pyarrow as pa

        return bool(pa.default_memory_pool().backend_name == "system")
    finally:
        del os.environ[_POOL]


def give_back() -> bool:
    """Give memory that malloc holds and nobody uses back to the system; whether there was any.

    What a thread took may lie below something small that stays, and then the whole of it would
    stay. Takes some milliseconds. False where malloc is not glibc's.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
