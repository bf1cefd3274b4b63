"""Checks of several queries on one machine: what they share, and what they must not.

Known limitation: only the queries of one settings file are known; another file's are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from spillway.doctor.check import Check
from spillway.doctor.machine import existing, room_for
from spillway.report.words import bytes_text
from spillway_schemas.settings import Settings

OWN: dict[str, Callable[[Settings], str]] = {
    "warehouse.root": lambda each: each.warehouse.root,
    "state.root": lambda each: each.state.root,
    "metrics.listen": lambda each: each.metrics.listen,
    "spark.ui_port": lambda each: str(each.spark.ui_port or ""),
}
"""What two queries may not have in common; empty: it has none."""


def beside(every: Sequence[Settings]) -> list[Check]:
    """Whether the named queries of a settings file can run side by side; none for one alone."""
    if len(every) < 2:
        return []
    shared = list(judge_shared(every))
    here = [each for each in every if each.spark.master.startswith("local")]
    by_system: dict[int, list[Settings]] = defaultdict(list)
    for each in here:
        by_system[_device(each.state.root)].append(each)
    budgets = [
        judge_budgets(
            {one.shown_name: one.state.slots * int(one.state.budget_bytes) for one in some},
            room_for([one.state.root for one in some]),
        )
        for some in by_system.values()
        if len(some) > 1
    ]
    return [*shared, *budgets]


def judge_shared(every: Sequence[Settings]) -> Iterator[Check]:
    """Whether each has its own folders and ports."""
    clashes = False
    for name, own in OWN.items():
        users: dict[str, list[str]] = defaultdict(list)
        for each in every:
            if value := own(each):
                users[value].append(each.shown_name)
        for value, some in users.items():
            if len(some) > 1:
                clashes = True
                yield Check(
                    "side by side",
                    "fail",
                    f"{' and '.join(some)} have one {name}: {value}",
                    f"give each its own {name}, below [queries.NAME]",
                )
    if not clashes:
        names = ", ".join(each.shown_name for each in every)
        yield Check("side by side", "ok", f"{names} have folders and ports of their own")


def judge_budgets(needed: dict[str, int], room_bytes: int) -> Check:
    """The sum of all budgets against what there is for their state together."""
    total = sum(needed.values())
    said = " + ".join(f"{name} {bytes_text(each)}" for name, each in needed.items())
    said = f"{said} = {bytes_text(total)} of {bytes_text(room_bytes)}"
    if total <= room_bytes:
        return Check("budgets together", "ok", said)
    return Check(
        "budgets together",
        "warn",
        f"{said}: that is too much when all of them run",
        "lower state.budget_bytes below [queries.NAME], so that together they fit",
    )


def _device(root: str) -> int:
    """The file system that a folder is in, or will be."""
    return existing(Path(root)).stat().st_dev
