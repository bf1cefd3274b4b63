"""Cleanup's memory: bounded by the piece, whatever the size of a range or of its results.

Each case runs in a process of its own, which measures its peak beyond what it had at the start.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import resource, sys, tempfile
import numpy as np, pyarrow as pa
from spillway.engine.spill.cleanup import clean_ranges
from spillway.engine.spill.source import SpillIndex, SpillSource
from spillway.engine.join.kernel import Rows
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import one_join
from spillway.engine.spill.spillfile import SpillFile, survey, write_spill
from spillway.storage import folder
from spillway_schemas.journal import Prefix

def peak_mb():
    # VmHWM, not ru_maxrss: the latter begins with what the parent process had.
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

case, piece_mb = sys.argv[1], float(sys.argv[2])
spec = one_join(JoinSpec(0, pa.schema([pa.field("k", pa.int64(), nullable=False)]),
                tuple(InputSpec(n, pa.schema([("v", pa.string())])) for n in "ab")))
rng = np.random.default_rng(1)

def rows(i, hashes):
    hashes = np.sort(hashes)
    n = len(hashes)
    # About 100 bytes that do not compress to nothing.
    raw = rng.bytes(50 * n).hex()
    text = pa.StringArray.from_buffers(
        n, pa.py_buffer(np.arange(0, 100 * n + 1, 100, dtype=np.int32)), pa.py_buffer(raw.encode()))
    return Rows(hashes, pa.Table.from_arrays(
        [pa.array(hashes.view(np.int64)), text, pa.array(np.full(n, i, np.int32)),
         pa.array(np.arange(n))], schema=spec.row_schema(i)))

with tempfile.TemporaryDirectory() as root:
    place, surveyed, spilled = folder(root), [], 0
    pool = rng.integers(0, 2**64, 100_000, dtype=np.uint64) >> np.uint64(1)
    for epoch in range(5 if case == 'wide' else 30):
        if case == "wide":
            hashes = [pool, pool]
        else:
            hashes = [np.full(n, 10**18, np.uint64) for n in (2000, 2)]
        record = write_spill(place, f"{epoch}", spec, "2026-01-05", epoch, [[rows(i, h)] for i, h in
                                                                  enumerate(hashes)])
        spilled += sum(map(len, hashes))
        file = SpillFile(record.path, record.bytes, record.digest)
        surveyed.append((file, survey(place, file, 0)))
    source = SpillSource(place, SpillIndex.of(surveyed), spec)
    del surveyed
    pa.default_memory_pool().release_unused()
    open("/proc/self/clear_refs", "w").write("5")  # the peak so far is forgotten
    before = peak_mb()
    results = sum(t.table.num_rows for _, t in clean_ranges(
        source, [Prefix(1, 0)], piece_bytes=int(piece_mb * 2**20), batch_bytes=2**20))
    print(spilled, int(source.index.groups.bytes.sum()) / 2**20, results, peak_mb() - before)
"""


def measure(case: str, piece_mb: float) -> tuple[int, float, int, float]:
    """Rows spilled, their MiB, results, MiB of memory beyond the start."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, case, str(piece_mb)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    rows, size, results, peak = done.stdout.split()
    return int(rows), float(size), int(results), float(peak)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.server
def test_a_range_larger_than_memory_is_cut():
    rows, size, results, peak = measure("wide", 4)
    assert size > 100
    assert results == 100_000 * (5 * 5 - 5)
    assert peak < 90, f"{peak:.0f} MiB for {rows} rows ({size:.0f} MiB) in pieces of 4 MiB"
    _, _, again, whole = measure("wide", 10_000)
    assert again == results
    assert whole > 2 * peak  # the measure can tell


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.server
def test_the_results_of_a_hot_key_are_never_held():
    rows, size, results, peak = measure("hot", 1)
    assert results == 60_000 * 60 - 30 * 2000 * 2
    # 3.5 million results of over 200 bytes; the key's own rows take about 10 MiB.
    assert peak < 100, f"{peak:.0f} MiB for {rows} rows ({size:.0f} MiB)"
