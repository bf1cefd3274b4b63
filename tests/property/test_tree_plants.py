"""Lies about trees of joins, one at a time: random days must show each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from spillway.cleanup import plan
from spillway.engine import probe, replay
from spillway.engine.replay import Generations
from spillway.engine.wire.blocks import Block
from spillway.protocol import recovery
from tests.property.test_tree_schedules import run

pytestmark = pytest.mark.server


@dataclass(frozen=True)
class Lie:
    """A function that is replaced, and the days within which that must be seen: from the one that
    showed it when that took long from 0 on."""

    name: str
    target: str
    other: Callable[..., Any]
    first: int = 0
    within: int = 150


def _cut_only(parents: Sequence[int], cut: Any) -> tuple[Any, ...]:
    return tuple(sorted(set(cut)))


def _all_at_once(ranges: Sequence[Any], parents: Sequence[int]) -> list[list[int]]:
    return [[join for stage in _stages(ranges, parents) for join in stage]]


def _twice(*given: Any, **more: Any) -> Iterator[Block]:
    for block in _replayed(*given, **more):
        yield block
        if block.kind == "restore":
            yield block


def _any_generation(self: Generations, hashes: Any, intervals: Any) -> Any:
    return np.zeros(len(hashes), dtype=np.int64)


def _one_cut_later(self: Generations, hashes: Any, intervals: Any) -> Any:
    return _of(self, hashes, np.maximum(intervals - 1, 0))


def _leaves_only(state: Any, slots: Any) -> frozenset[int]:
    return frozenset()


def _nearest_only(state: Any, slots: Any) -> frozenset[int]:
    joins = _below(state, slots)
    return frozenset(join for join in joins if state.genesis.parents[join] not in joins)


def _own_step_only(spec: Any, task: Any, level: int, unfound: Any) -> Iterator[Block]:
    return (b for b in _missing(spec, task, level, unfound) if b.slot == task.slot)


_missing = probe._missing
_stages = plan.stages
_replayed, _of = replay.replayed, Generations.of
_below = recovery._replayed

LIES = (
    Lie(
        "late results join as rows of the last generation",
        "spillway.cleanup.task.generation_of",
        lambda epoch, operator: epoch,
        first=5,
    ),
    Lie(
        "late results of two children are one generation",
        "spillway.cleanup.task.generation_of",
        lambda epoch, operator: epoch + 1,
        first=5,
        within=600,
    ),
    Lie(
        "a join above one that was cut is not flushed",
        "spillway.protocol.plan.flushed",
        _cut_only,
        first=50,
    ),
    Lie(
        "a join is cleaned before what those below it lacked is stored",
        "benchmarks.lab.job.stages",
        _all_at_once,
        first=5,
    ),
    Lie("rows of a join are restored twice", "spillway.engine.probe.replayed", _twice, first=101),
    Lie(
        "rows that had never met are restored",
        "spillway.engine.replay.Generations.of",
        _any_generation,
        first=5,
    ),
    Lie(
        "a cut is one interval late",
        "spillway.engine.replay.Generations.of",
        _one_cut_later,
        first=11,
    ),
    Lie(
        "rows of joins are not restored",
        "spillway.protocol.recovery._replayed",
        _leaves_only,
        first=101,
    ),
    Lie(
        "a probe without state tells the step of its slot alone",
        "spillway.engine.probe._missing",
        _own_step_only,
        first=129,
    ),
    Lie(
        "only the join right below makes its rows again",
        "spillway.protocol.recovery._replayed",
        _nearest_only,
        first=170,
        within=600,
    ),
)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_a_lie_about_trees_is_seen(lie: Lie) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch(lie.target, lie.other))
        for number in range(lie.first, lie.first + lie.within):
            try:
                run(number, 7 * number + 1)
            except Exception:  # noqa: BLE001 - however it shows
                return
    raise AssertionError(f"{lie.name}: not seen in {lie.within} days")


def test_the_days_are_exact_without_a_lie() -> None:
    """Otherwise seeing something would prove nothing: these are the days that most lies end at."""
    for number in (5, 6, 15, 50, 101, 129, 170):
        run(number, 7 * number + 1)
