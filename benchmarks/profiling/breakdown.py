"""From what was written down to tables: pure, no clocks and no files.

An epoch's wall time is cut at moments that follow one another, so its parts add up to its period
(from the end of the epoch before to its own end):

    Spark between batches | plan | until decoding begins | decoding | until steps begin | steps |
    until the reports are here | files to disk | journal | tables | upkeep | other
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from spillway_schemas.journal import Epoch

WARM_AFTER = 3
"""Epochs left out at the beginning: the JVM has not compiled its code yet."""

Span = tuple[str, float, float]

INSTRUCTIONS = {
    "Sync": "data files to disk (fsync)",
    "Append": "journal entry",
    "Apply results": "commit: results",
    "Apply spill": "commit: spill",
    "Apply quarantine": "commit: quarantine",
    "Apply statistics": "commit: statistics",
    "Ready": "upkeep of the tables",
}


@dataclass(frozen=True)
class TaskTimes:
    """The tasks of one kind in one epoch. Seconds, added up over the tasks."""

    count: int
    wait_s: float
    work_s: float
    hand_s: float


@dataclass(frozen=True)
class EpochTimes:
    """One epoch."""

    period_s: float
    parts: dict[str, float]
    """Wall seconds in the order of time; they add up to the period."""
    decode: TaskTimes
    step: TaskTimes


def timeline(spans: Iterable[Span], tasks: Sequence[Mapping[str, Any]]) -> list[EpochTimes]:
    """The epochs that ran a job with decoders and steps, in order; the first has no period."""
    by_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, begin, end in spans:
        by_name[name].append((begin, end))
    batches = sorted(by_name["batch"])
    jobs = sorted(by_name["job"])
    found = []
    for (_, before), (begin, end) in pairwise(batches):
        mine = [job for job in jobs if begin <= job[0] <= end]
        if not mine:
            continue
        job = mine[-1]
        inside = [t for t in tasks if job[0] <= t["began_at_s"] <= job[1]]
        decode = [t for t in inside if t["kind"] == "decode"]
        step = [t for t in inside if t["kind"] == "step"]
        if not decode or not step:
            continue
        edges = (
            ("Spark between two batches", before, begin),
            ("plan", begin, job[0]),
            ("job: until decoding begins", job[0], _first(decode)),
            ("job: decoding", _first(decode), _last(decode)),
            ("job: until the steps begin", _last(decode), _first(step)),
            ("job: the slots' steps", _first(step), _last(step)),
            ("job: until the reports are here", _last(step), job[1]),
        )
        parts = {name: b - a for name, a, b in edges}
        for name, spans_of in by_name.items():
            if name in INSTRUCTIONS:
                inner = [b - a for a, b in spans_of if job[1] <= a <= end]
                parts[INSTRUCTIONS[name]] = sum(inner)
        parts["other"] = (end - before) - sum(parts.values())
        found.append(EpochTimes(end - before, parts, _added(decode), _added(step)))
    return found


def _first(tasks: Sequence[Mapping[str, Any]]) -> float:
    return min(float(t["began_at_s"]) for t in tasks)


def _last(tasks: Sequence[Mapping[str, Any]]) -> float:
    return max(float(t["ended_at_s"]) for t in tasks)


def _added(tasks: Sequence[Mapping[str, Any]]) -> TaskTimes:
    wait, work, hand = (sum(t[name] for t in tasks) for name in ("wait_s", "work_s", "hand_s"))
    return TaskTimes(len(tasks), wait, work, hand)


def warm(epochs: Sequence[EpochTimes]) -> list[EpochTimes]:
    """Without the cold ones at the beginning and the last, which may be short of rows."""
    rest = list(epochs[WARM_AFTER - 1 : -1])  # the very first has no period and is not there
    return rest or list(epochs)


def wall_rows(epochs: Sequence[EpochTimes]) -> list[tuple[str, float]]:
    """Mean wall seconds of each part of a warm epoch, then the whole."""
    names = list(dict.fromkeys(name for each in epochs for name in each.parts))
    rows = [(name, mean(each.parts.get(name, 0.0) for each in epochs)) for name in names]
    rows.sort(key=lambda row: row[0] == "other")
    return [*rows, ("an epoch, all in all", mean(each.period_s for each in epochs))]


def task_rows(epochs: Sequence[EpochTimes], entries: Sequence[Epoch]) -> list[tuple[str, float]]:
    """Mean seconds a warm epoch of all tasks together (they run at the same time)."""
    rows = []
    for kind, what in (("decode", "decoders"), ("step", "steps")):
        times = [getattr(each, kind) for each in epochs]
        count = mean(t.count for t in times)
        rows += [
            (f"{what} ({count:.0f} tasks): waiting for input", mean(t.wait_s for t in times)),
            (f"{what}: work", mean(t.work_s for t in times)),
        ]
        if kind == "step":
            rows += [(f"… of it {name}", value) for name, value in _step_parts(entries)]
        rows.append((f"{what}: handing over", mean(t.hand_s for t in times)))
    return rows


SPARK_PARTS = {
    "latestOffset": "asking Kafka for the ends",
    "walCommit": "offset log",
    "getBatch": "frame of the batch",
    "queryPlanning": "planning",
    "commitOffsets": "commit log",
    "commitBatch": "end of the batch",
}


def spark_rows(progress: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Mean seconds of what Spark reports of a warm batch besides `foreachBatch` itself."""
    reports = sorted(progress, key=lambda each: int(each["batchId"]))
    chosen = [each["durationMs"] for each in reports if each["numInputRows"]]
    chosen = chosen[WARM_AFTER:] or chosen
    if not chosen:
        return []
    return [
        (name, mean(each.get(key, 0) for each in chosen) / 1000)
        for key, name in SPARK_PARTS.items()
    ]


def _step_parts(entries: Sequence[Epoch]) -> list[tuple[str, float]]:
    """Mean seconds of the parts of all slots' steps, from the journal."""
    chosen = entries[WARM_AFTER:-1] or entries
    parts: dict[str, float] = defaultdict(float)
    for entry in chosen:
        for slot in entry.slots:
            for name, seconds in slot.seconds.items():
                parts[name] += seconds / len(chosen)
    return list(parts.items())


def function_rows(
    stats: Mapping[tuple[str, int, str], tuple[Any, ...]], root: str, most: int
) -> list[tuple[str, float]]:
    """The functions with the most time of their own, as `file:line function`, with seconds.

    `stats`: of `pstats.Stats`: (file, line, function) -> (calls, primitive, own, with callees, ..).
    """
    own = sorted(((value[2], key) for key, value in stats.items()), reverse=True)[:most]
    return [(_place(key, root), seconds) for seconds, key in own]


def _place(key: tuple[str, int, str], root: str) -> str:
    file, line, function = key
    if file == "~":
        return function.strip("<>")
    _, inside, package = file.rpartition("/site-packages/")
    place = package if inside else file.removeprefix(root).lstrip("/")
    return f"{place}:{line} {function}"
