"""Groups of a tree know how many results came through them, and what is stored because of them."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.engine.state.loading import load
from spillway.engine.state.runs import bytes_of
from spillway.engine.tracing import counted_for
from spillway_schemas.journal import Prefix
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_query_trees import FIELDS, text_of
from tests.property.test_tree_schedules import SCRATCH, rows_of
from tests.property.tree_slots import DAYS, KEY, TreeSlots


def a_day(number: int, seed: int, root: str, traced_rows: int = 0) -> TreeSlots:
    """A day without spills. At its end an empty epoch: slots know what others have counted."""
    rng = random.Random(seed)
    query = query_of(parse_toml(text_of(number), Path("q.toml")))
    options = {"victims": "global-output-penalty", "trace_most": traced_rows}
    day = TreeSlots(query, root, slots=rng.randint(1, 3), groups=4, options=options)
    for _ in range(3):
        moves = {rng.randrange(64): rng.randrange(day.slots)} if rng.random() < 0.3 else None
        day.epoch(rows_of(day, rng, 2), moves=moves)
    day.epoch([])
    return day


def figures(day: TreeSlots, column: str) -> Counter[Prefix]:
    """What the slots' manifests say of each group."""
    found: Counter[Prefix] = Counter()
    for slot, manifest in day.journal.manifests.items():
        folder, epoch = day.folder_of(slot), day.journal.epoch
        table = load(day.spec, folder, slot, epoch, manifest, KEY).manifest.figures
        for depth, value, count in zip(
            *(table[name].to_pylist() for name in ("depth", "value", column)), strict=True
        ):
            if count:
                found[Prefix(depth, value)] += count
    return found


def by_brute_force(day: TreeSlots) -> Counter[Prefix]:
    """Each result once in each join, in the group of its key's hash."""
    groups = GroupMap(day.journal.groups)
    values = {
        (topic, p, o): json.loads(value)
        for (topic, p), rows in day.kafka.items()
        for o, value in enumerate(rows)
    }
    found: Counter[Prefix] = Counter()
    for result in day.expected(DAYS[0]).elements():
        of = {leaf: values[day.query.topic(leaf), p, o] for leaf, p, o in result}
        for number, join in enumerate(day.query.tree.joins):
            keys = []
            for key in join.keys:
                source = day.query.tree.source(key, join.inputs[0])
                keys.append(pa.array([of[source.leaf][source.expression]], pa.int64()))
            at = groups.group_of(day.spec.hashes(number, keys))
            found[groups.prefixes[int(at[0])]] += 1
    return found


@explored(6, 40, st.integers(0, 2**32), st.integers(0, 2**32), soak=400)
def test_final_results_are_counted_for_every_group(number: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = a_day(number, seed, root)
        if len(day.spec.joins) > 1:
            assert figures(day, "final_results") == by_brute_force(day)


@explored(6, 40, st.integers(0, 2**32), st.integers(0, 2**32), soak=400)
def test_what_is_stored_downstream_is_counted_once_for_each_join(number: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = a_day(number, seed, root)
        counts = figures(day, "downstream_bytes")
        stored: Counter[int] = Counter()
        for slot, manifest in day.journal.manifests.items():
            found = load(day.spec, day.folder_of(slot), slot, day.journal.epoch, manifest, KEY)
            for session in found.sessions.values():
                for input_, each in enumerate(day.spec.inputs):
                    size = sum(bytes_of(part.rows) for part in session.parts[input_])
                    for join in each.lineage:
                        stored[number_of(day, join)] += size
        for join, space in enumerate(day.spec.spaces):
            mine = sum(count for group, count in counts.items() if space.covers(group))
            assert mine == pytest.approx(stored[join], rel=0.05, abs=8 * 64)


def number_of(day: TreeSlots, name: str) -> int:
    return [join.name for join in day.query.tree.joins].index(name)


def test_a_sample_counts_about_as_much() -> None:
    """Two rows of each batch are drawn; the sum over a join's groups is exact all the same."""
    for number in range(40):
        with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
            day = a_day(number, 5, root, traced_rows=2)
            if len(day.spec.joins) > 1 and day.results[DAYS[0]].total() > 4:
                counts = figures(day, "final_results")
                for space in day.spec.spaces:
                    mine = [count for group, count in counts.items() if space.covers(group)]
                    assert np.isclose(sum(mine), day.results[DAYS[0]].total())
                return
    raise AssertionError("no tree gave results")


def test_no_two_batches_draw_with_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins, slots, sessions and batches of an epoch: their errors must not be the same ones."""
    seeds: Counter[object] = Counter()

    def noted(*args: Any, seed: object, **kwargs: Any) -> Any:
        seeds[tuple(np.random.SeedSequence(seed).generate_state(4))] += 1
        return counted_for(*args, seed=seed, **kwargs)

    for module in ("probe", "step"):
        monkeypatch.setattr(f"spillway.engine.{module}.counted_for", noted)
    query = query_of(parse_toml(text_of(7), Path("q.toml")))
    options = {"victims": "global-output-penalty", "trace_most": 2, "batch_bytes": 1}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        day = TreeSlots(query, root, slots=2, groups=4, options=options)
        assert day.spec.height > 1
        values = [dict.fromkeys(FIELDS, value) for value in range(6)]  # rows of both slots
        every = [(topic, p, each) for topic in query.topics for p in (0, 1) for each in values]
        day.epoch(every)
        day.epoch(every, later=every, seal=True)  # in one epoch
        assert all(day.results[each].total() > 1 for each in DAYS[:2])
    assert max(seeds.values()) == 1
