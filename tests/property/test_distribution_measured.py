"""Rows that go from slot to slot in the engine are those that the distribution reckons with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.lab import job
from spillway.engine.probe import probe
from spillway.policy.distribution import Tree, distribution, exchanged
from spillway_schemas.query import load_query
from tests.property.tree_slots import TreeSlots

STREAMS = {"a": ("a1", "a2"), "b": ("b1", "b2"), "c": ("c1", "c2"), "d": ("d1", "d2")}
STREAMS["e"] = ("e1", "e2")
FIRST = ("a1", "b1", "c1")
"""Keys of the first join."""
ROWS = 120
"""Of each stream; of the first join's keys there are 40, of the others 150."""


def rows() -> list[tuple[str, int, dict[str, int]]]:
    rng = random.Random(5)
    return [
        (stream, 0, {name: rng.randrange(40 if name in FIRST else 150) for name in fields})
        for stream, fields in STREAMS.items()
        for _ in range(ROWS)
    ]


@dataclass
class Watch:
    """Counts what the probes send up, by the join that gave it."""

    gave: Counter[int] = field(default_factory=Counter)
    over: Counter[int] = field(default_factory=Counter)
    """Of that, rows for another slot."""
    pairs: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, spec: Any, task: Any, *rest: Any, **more: Any) -> Iterator[Any]:
        child = {up.input: join for join, up in enumerate(spec.upward) if up is not None}
        for block in probe(spec, task, *rest, **more):
            if block.kind == "new" and block.input in child:
                count = pa.ipc.open_stream(block.data).read_all().num_rows
                self.gave[child[block.input]] += count
                if block.slot != task.slot:
                    self.over[child[block.input]] += count
                    self.pairs.add((task.slot, block.slot))
            yield block


@pytest.mark.parametrize("kind", ["all", "random", "balanced-network-aware"])
@pytest.mark.parametrize("slots", [2, 4])
def test_rows_between_slots_are_as_reckoned(
    slots: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    monkeypatch.setattr(job, "probe", watch)
    query = load_query("five_way")
    day = TreeSlots(query, str(tmp_path), slots=slots, groups=8, distribution=kind)
    day.epoch(rows())
    assert min(watch.gave.values()) > 500
    of_query = query.tree.own_leaves
    places = distribution(kind, Tree(day.spec.parents, of_query, {}), slots)
    told = {join: float(count) for join, count in watch.gave.items()}
    reckoned, pairs = exchanged(Tree(day.spec.parents, of_query, told), places)
    gave, over = sum(watch.gave.values()), sum(watch.over.values())
    assert over == pytest.approx(reckoned, abs=0.1 * gave)
    assert len(watch.pairs) == pairs
