"""A call of `decode` takes at most 8 times the bytes of its values and 64 MiB, whatever they hold.

What a call took is the peak of resident memory in a process of its own, less the values and what
was resident before the first call.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.decode import MOST_ROWS

MIB = 1 << 20
SIZE = 12 * MIB
"""So much that what a parser makes of the bombs, 17 to 27 times their bytes, is out of bounds."""

RIGHT = b'"symbol":"A","ts":"2026-01-05T14:30:00Z","price":1}'


def one(unit: bytes) -> list[bytes]:
    """A single large message among so many small ones that columns are tried."""
    return [b'{"x":[' + unit * (SIZE // len(unit)) + b"0]," + RIGHT, *[b"{" + RIGHT] * 50]


def many(field: bytes) -> list[bytes]:
    """Messages that all have one more field."""
    value = b"{" + field + b"," + RIGHT
    return [value] * (SIZE // len(value))


CASES: dict[str, Callable[[], list[bytes]]] = {
    "no JSON": lambda: [b"{"] * MOST_ROWS,
    "one of objects": lambda: one(b"{},"),
    "one of numbers": lambda: one(b"1,"),
    "one of fields": lambda: one(b'{"a":1},'),
    "one long text": lambda: [
        b'{"currency":"' + b"x" * SIZE + "\U0001f600".encode() + b'",' + RIGHT
    ],
    "lists of objects": lambda: many(b'"x":[' + b"{}," * 80_000 + b"0]"),
    "small lists of objects": lambda: many(b'"x":[' + b"{}," * 3_000 + b"0]"),
    "names": lambda: many(b'"":1,' * 30_000 + b'"":1'),
    "texts": lambda: many(b'"":"",' * 100 + b'"":1'),
    "numbers": lambda: many(b'"x":[' + b"1," * 200 + b"1]"),
}

PROGRAM = """
import ctypes
import gc
import json
import pyarrow as pa
from spillway.decode import compile_streams, decode
from spillway_schemas.query import load_query
from tests.unit.test_decode_memory import CASES, RIGHT

def status(name):
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

stock = compile_streams(load_query("symbol"))[0]
decode(stock, pa.array([b"x", b"{" + RIGHT] * 50))  # what is loaded and allocated once
before = status("VmRSS")
for case, make in CASES.items():
    array = pa.array(make(), pa.binary())
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
    decoded = decode(stock, array)
    taken = status("VmHWM") - before - array.nbytes
    print(json.dumps([case, array.nbytes, taken, len(decoded.kept), len(decoded.rejected)]))
    del array, decoded
    # What a case has freed and the allocators keep is not the next one's.
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
"""


@pytest.fixture(scope="module")
def taken() -> dict[str, list[int]]:
    """For each case the bytes of its values, the bytes that a call took, rows kept and rejected."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return {case: numbers for case, *numbers in map(json.loads, run.stdout.splitlines())}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.server
def test_memory_is_bounded(taken: dict[str, list[int]], case: str) -> None:
    size, most, kept, rejected = taken[case]
    assert kept == 0 if case == "no JSON" else rejected == 0
    assert most <= 8 * size + 64 * MIB, f"{most / MIB:.0f} MiB for {size / MIB:.0f} MiB"
    print(f"{case}: {most / MIB:.0f} MiB for {size / MIB:.0f} MiB")
