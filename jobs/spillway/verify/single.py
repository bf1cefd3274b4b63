"""A query of one join without a window: what `proof` asks of it.

Input, results and quarantine are read once, by several processes of this host (`processes`), and
summed by the join's key (`sums`): no Spark, which takes longer to start than most days to prove. It
is started when differences must be named, for that is a join.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spillway.decode import StreamPlan
from spillway.protocol.offsets import rows_between
from spillway.sealed_input.decoding import TopicRanges, key_names
from spillway.storage import Folder
from spillway.stream.messages import ranges_of
from spillway.verify.processes import ProofProcesses, processes_for
from spillway.verify.sums import Counted, SumPlan, buckets_for
from spillway.verify.tasks import (
    CorrectionRows,
    InputPart,
    Part,
    ProofSource,
    ProofTasks,
    QuarantineFiles,
    ResultFiles,
    distinct,
)
from spillway.verify.verdicts import FEW_KEYS, Difference, JudgedKeys

ROWS_A_PART = 1_000_000
"""Messages that a task reads: so many that a task costs nothing, and so few that processes end
together."""
PARTS_A_PROCESS = 8
"""Tasks for the files of results, at least, where there are as many."""


class SingleProof:
    """The proof of one join of several streams."""

    joined: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        plans: Sequence[StreamPlan],
        source: TopicRanges,
        results: tuple[Folder, Sequence[tuple[str, int]]],
        quarantine: tuple[Folder, Sequence[str]],
        salt: int,
        cores: int,
        frames: Callable[[], tuple[Sequence[Any], Any]],
        optional: tuple[str, ...] = (),
    ) -> None:
        """`results`: the table's folder, and path and rows of the session's files in it.
        `quarantine`: the same without rows. `frames`: of `rows.input_rows` and `rows.result_rows`,
        for the difference. `optional`: streams whose rows a result may lack."""
        self._plans = plans
        self._frames = frames
        rows = rows_between(source.start, source.end) + sum(n for _, n in results[1])
        processes = processes_for(rows, cores)
        self._parts: list[Part] = [
            *input_parts(source),
            *file_parts(results[1], processes),
            *([QuarantineFiles(tuple(quarantine[1]))] if quarantine[1] else []),
        ]
        self._spool = Path(tempfile.mkdtemp(prefix="spillway-verify-"))
        self._buckets = buckets_for(rows, processes)
        self._plan = SumPlan(tuple(plans), salt, self._buckets, optional)
        where = ProofSource(source.messages, results[0], quarantine[0], self._spool)
        self._processes = ProofProcesses(self._plan, where, processes)

    def judged(self) -> JudgedKeys:
        """Totals, and the keys that fail."""
        counted = Counted()
        for each in self._processes.each(ProofTasks.summed, self._parts):
            counted = counted.plus(each)
        expected = unmatched = keys = failing = 0
        hashes: list[Any] = []
        for bucket in self._processes.each(ProofTasks.judged, range(self._buckets)):
            expected += bucket.expected
            unmatched += bucket.unmatched
            keys += bucket.keys
            failing += bucket.failing
            hashes += bucket.hashes.tolist()
        totals = {
            "expected": expected,
            **({"unmatched": unmatched} if self._plan.optional else {}),
            "run_time": counted.run_time,
            "cleanup": counted.cleanup,
            "keys": keys,
            "failing": failing,
            "rejected": counted.rejected.rows,
            "quarantined": counted.quarantined.rows,
            "rejected_wrong": int(counted.rejected != counted.quarantined),
        }
        named = self._plan.keys.empty_table()
        if 0 < failing <= FEW_KEYS:
            named = self._named(hashes)
        return JudgedKeys(totals, named)

    def _named(self, hashes: Sequence[int]) -> pa.Table:
        """The keys of these hashes: whatever has them is read again."""
        wanted = np.sort(np.array(hashes, np.uint64))
        parts = [each for each in self._parts if not isinstance(each, QuarantineFiles)]
        found = list(self._processes.each(partial(_named, hashes=wanted), parts))
        return distinct(pa.concat_tables(found))

    def difference(self, only: Any | None, examples: int) -> Difference:
        """What is missing or too many, of these keys or of all."""
        from pyspark.sql import functions as sql

        from spillway.verify.difference import JoinSide, difference, joined_rows
        from spillway.verify.rows import absent_hash

        inputs, results = self._frames()
        keys = key_names(self._plans[0])
        sides = [
            JoinSide(
                plan.index,
                rows,
                [(key, sql.col(key)) for key in keys],
                absent_hash(self._plan.salt, plan) if plan.name in self._plan.optional else None,
            )
            for plan, rows in zip(self._plans, inputs, strict=True)
        ]
        return difference(
            joined_rows(sides, keys, only),
            results,
            keys,
            self._plans[0].keys.names,
            [plan.name for plan in self._plans],
            only=only,
            examples=examples,
        )

    def how_far(self) -> str:
        """`12 of 40 tasks`."""
        return self._processes.how_far()

    def close(self) -> None:
        """End the processes, and remove what they spooled."""
        self._processes.close()
        shutil.rmtree(self._spool, ignore_errors=True)


def _named(tasks: ProofTasks, part: Part, hashes: Any) -> pa.Table:
    return tasks.named(part, hashes)


def input_parts(source: TopicRanges) -> list[InputPart]:
    """The session's messages in ranges of at most `ROWS_A_PART` offsets, and the corrections'."""
    parts: list[InputPart] = [
        replace(each, begin=at, end=min(at + ROWS_A_PART, each.end))
        for each in ranges_of(source.start, source.end)
        for at in range(each.begin, each.end, ROWS_A_PART)
    ]
    if source.corrections is not None:
        parts.append(CorrectionRows(source.corrections))
    return parts


def file_parts(files: Sequence[tuple[str, int]], processes: int) -> list[ResultFiles]:
    """Files (path, rows) in lists of about as many rows, at most `ROWS_A_PART` where files are
    smaller."""
    rows = sum(n for _, n in files)
    most = max(1, min(ROWS_A_PART, rows // (processes * PARTS_A_PROCESS)))
    parts: list[ResultFiles] = []
    held: list[str] = []
    size = 0
    for path, n in sorted(files, key=lambda each: -each[1]):
        held.append(path)
        size += n
        if size >= most:
            parts.append(ResultFiles(tuple(held)))
            held, size = [], 0
    if held:
        parts.append(ResultFiles(tuple(held)))
    return parts
