"""What arrives for a tree of joins: a shipped scenario of the papers' five-way query, scaled. Pure.

The streams, their keys and their join ratios are the scenario's, and so are the messages: they are
made by `spillway.produce` and read back. A day is then a table of numbers for each stream. Scaling
by a factor takes as many times the rows and join values of every domain, so that each value occurs
as often as in the scenario.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.json

from benchmarks.lab.workload import I64
from spillway.decode import CompiledQuery, compile_query
from spillway.engine.groups import GroupMap
from spillway.produce.generate import sources
from spillway.stream.genesis import shared_out
from spillway_schemas.query import load_query
from spillway_schemas.scenario import Scenario, load_scenario

QUERY = "five_way"
LINKS = {"c": ("c1", "c2"), "d": ("d1", "d2")}
"""Of the streams that have a key of two joins the columns of both."""


@dataclass(frozen=True)
class TreeWorkload:
    """A day's description."""

    scenario: str
    factor: float
    """Of the scenario's rows and join values."""
    groups: int = 256
    """Of each join."""
    against: bool = False
    """Whether rows with a frequent key of one join have a rare key of the next, instead of any."""

    def described(self) -> Scenario:
        """The scenario, scaled."""
        whole = load_scenario(self.scenario)
        assert whole.rate is not None
        domains = {
            name: each.model_copy(update={"tuple_range": round(each.tuple_range * self.factor)})
            for name, each in whole.domains.items()
            if each.tuple_range is not None
        }
        rate = whole.rate * self.factor
        return whole.model_copy(update={"rate": rate, "domains": domains})

    @property
    def minutes(self) -> float:
        """How long the day is."""
        whole = load_scenario(self.scenario)
        assert whole.duration_s is not None
        return whole.duration_s / 60


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The rows of one stream, in order of arrival."""

    table: pa.Table
    """(n,) by column."""
    epoch: I64
    """(n,) in which each comes, ascending."""

    def keys(self, column: str) -> I64:
        """(n,) a column of numbers."""
        found: I64 = self.table[column].to_numpy()
        return found


@dataclass(frozen=True, eq=False)
class TreeDay:
    """What a workload came to: `e` epochs."""

    epoch_s: float
    epochs: int
    groups: int
    """Of each join."""
    streams: Mapping[str, Arrivals]

    @cached_property
    def query(self) -> CompiledQuery:
        """The joins, and which columns of a stream they read."""
        return compile_query(load_query(QUERY))

    def of_all_joins(self, each: GroupMap) -> GroupMap:
        """The groups of all joins, join after join, each join's with the slots of `each`."""
        return GroupMap(shared_out(each, len(self.query.spec.joins)))


def generate_tree(workload: TreeWorkload, epoch_s: float) -> TreeDay:
    """Make the day."""
    epochs = round(workload.minutes * 60 / epoch_s)
    streams = {}
    for source in sources(workload.described()):
        chunks = [source.chunk(plan.number) for plan in source.plan]
        lines = b"\n".join(v for chunk in chunks for v in chunk.values.to_pylist())
        due = np.concatenate([chunk.due_s for chunk in chunks])
        epoch = np.minimum((due / epoch_s).astype(np.int64), epochs - 1)
        table = pa.json.read_json(io.BytesIO(lines))
        keys = LINKS.get(source.stream)
        if workload.against and keys:
            table = _against(table, *keys)
        streams[source.stream] = Arrivals(table, epoch)
    return TreeDay(epoch_s, epochs, workload.groups, streams)


def _against(table: pa.Table, one: str, other: str) -> pa.Table:
    """The rows with the same values of both columns, paired so that a frequent value of one comes
    with a rare one of the other. Which value a row has of the first stays as it was."""
    first, second = (table[name].to_numpy() for name in (one, other))
    rank = np.argsort(_frequency(first), kind="stable")
    rare = np.argsort(-_frequency(second), kind="stable")
    paired = np.empty_like(second)
    paired[rank] = second[rare]
    return table.set_column(table.column_names.index(other), other, pa.array(paired))


def _frequency(values: I64) -> I64:
    """(n,) how often each row's value occurs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[inverse]
