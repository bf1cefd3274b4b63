"""What a session's proof is made from, by what the query is: one join, one with a window, or a
tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from spillway.decode import StreamPlan, compile_streams
from spillway.decode.values import leaf_plans, values_of, windows_of
from spillway.registry import with_schemas
from spillway.sealed_input.decoding import TopicRanges
from spillway.tables import Warehouse
from spillway.verify.single import SingleProof
from spillway.verify.tasks import TableFiles
from spillway.verify.verdicts import Difference, JudgedKeys
from spillway_schemas.query import Query
from spillway_schemas.settings import RegistrySettings


class ProofFrames(Protocol):
    """What the proof is made from, of a query of one join or of a tree."""

    @property
    def joined(self) -> tuple[tuple[str, str], ...]:
        """Leaves whose keys had to be combined (`fold`)."""

    def judged(self) -> JudgedKeys:
        """Totals, and the keys that fail."""

    def difference(self, only: Any | None, examples: int) -> Difference:
        """What is missing or too many, of these keys or of all."""

    def how_far(self) -> str:
        """How far it is, in words; empty: nobody knows."""

    def close(self) -> None:
        """Give back what is held."""


@dataclass(frozen=True)
class ProofRequest:
    """What is to be proved, and with what."""

    spark: Callable[[], Any]
    warehouse: Warehouse
    query: Query
    source: TopicRanges
    session: str
    salt: int
    cores: int
    registry: RegistrySettings

    def plans(self) -> tuple[StreamPlan, ...]:
        """How each stream's messages are read."""
        return self.knowing(compile_streams(self.query))

    def knowing(self, plans: Iterable[StreamPlan]) -> tuple[StreamPlan, ...]:
        """Plans that know what ids of schemas have meant to the warehouse."""
        return with_schemas(plans, self.registry, self.warehouse.place)


def frames_of(asked: ProofRequest) -> ProofFrames:
    """What a session's proof is made from. Raises QueryError."""
    warehouse, query, source, salt = asked.warehouse, asked.query, asked.source, asked.salt
    held = {name: warehouse.files(name, asked.session) for name in ("results", "quarantine")}
    if query.is_single and query.spans[0] is None:
        plans = asked.plans()
        return SingleProof(
            plans,
            source,
            (warehouse.folder("results"), [(file.path, file.rows) for file in held["results"]]),
            (warehouse.folder("quarantine"), [file.path for file in held["quarantine"]]),
            salt,
            asked.cores,
            partial(_single_frames, asked, plans, [file.path for file in held["results"]]),
            query.optional,
        )
    # Only now: what this imports takes a second.
    from spillway.verify.rows import input_rows, quarantined_rows, result_rows
    from spillway.verify.trees import TreeFrames, leaf_rows, tree_results
    from spillway.verify.windowed import WindowedFrames

    spark = asked.spark()
    files = {
        name: _files(warehouse, name, [file.path for file in some]) for name, some in held.items()
    }
    quarantine = quarantined_rows(spark, files["quarantine"])
    if query.is_single:
        span = query.spans[0]
        assert span is not None
        plans = asked.plans()
        inputs = [input_rows(spark, plan, source, salt) for plan in plans]
        results = result_rows(spark, plans, files["results"], salt)
        return WindowedFrames(spark, span, plans, inputs, results, quarantine, salt)
    values = values_of(query)
    plans = asked.knowing(leaf_plans(query, values))
    leaves = [
        leaf_rows(spark, plan, leaf, source, salt)
        for plan, leaf in zip(plans, values.leaves, strict=True)
    ]
    results = tree_results(spark, values, files["results"], salt)
    return TreeFrames(spark, values, plans, leaves, results, quarantine, salt, windows_of(query))


def _single_frames(
    asked: ProofRequest, plans: Sequence[StreamPlan], paths: Sequence[str]
) -> tuple[list[Any], Any]:
    """Frames of the inputs and of the results of one join, for its differences."""
    from spillway.verify.rows import input_rows, result_rows

    spark = asked.spark()
    inputs = [input_rows(spark, plan, asked.source, asked.salt) for plan in plans]
    files = _files(asked.warehouse, "results", paths)
    return inputs, result_rows(spark, plans, files, asked.salt)


def _files(warehouse: Warehouse, name: str, paths: Sequence[str]) -> TableFiles:
    return TableFiles(warehouse.folder(name), warehouse.table(name).definition.file_schema, paths)
