"""Plans: what decoding one stream needs to know, compiled from the query on the driver.

A plan is small, holds no open thing and pickles, so it travels to the workers inside the task.
Everything that can be wrong with a query is found here, before the first row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from spillway.decode import rules as columns
from spillway.decode.expressions import EvaluationError, type_of
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway_schemas.expressions import columns_of, plain_column
from spillway_schemas.messages import FieldRule, Message, contract
from spillway_schemas.query import Query, QueryError


@dataclass(frozen=True)
class StreamPlan:
    """How one stream's values become rows of the join's input number `index`."""

    name: str
    topic: str
    index: int
    keys: Any
    """pa.Schema: the join-key columns, not null, in the join's order, under the join's names."""
    payload: Any
    """pa.Schema: the other columns that results carry, under their field names."""
    rules: tuple[FieldRule, ...] = ()
    """The contract's fields."""
    sources: tuple[str, ...] = ()
    """For each key the column, or the expression, that it comes from."""
    plain: tuple[bool, ...] = ()
    """For each key whether its source is a column."""
    filter: str | None = None
    reads: tuple[str, ...] = field(default=())
    """Columns that filter and key expressions read."""

    @property
    def schema(self) -> Any:
        """pa.Schema of the decoded rows: keys, then payload."""
        return pa.schema([*self.keys, *self.payload])

    @cached_property
    def contract(self) -> type[Message]:
        """The pydantic model that decides; made once in a process."""
        return _contract(self.rules)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the model: classes made at run time cannot travel."""
        return {name: value for name, value in self.__dict__.items() if name != "contract"}


@lru_cache(maxsize=64)
def _contract(rules: tuple[FieldRule, ...]) -> type[Message]:
    return contract(rules)


KEY_TYPES = "string, int, bool, date, timestamp or decimal"


def compile_streams(query: Query) -> tuple[StreamPlan, ...]:
    """One plan per input of the query's join. Raises QueryError with file and line.

    So far the engine runs one join of different streams.
    """
    problems: list[str] = []
    if not query.is_single:
        raise QueryError(
            f"{query.where('join')}: a join of joins, or one that reads a stream twice, cannot run "
            "yet; `spillway explain` shows it. What runs: one join of two or more streams"
        )
    plans = tuple(
        compile_leaf(
            query,
            name,
            i,
            [
                WantedKey(
                    key.name,
                    query.tree.source(key, name).expression,
                    f"{_where_of_key(query, position)}: key {key.name} of {name}",
                )
                for position, key in enumerate(query.tree.root.keys)
            ],
            problems,
        )
        for i, name in enumerate(query.inputs)
    )
    _raise(problems)
    for position, key in enumerate(query.tree.root.keys):
        types = {plan.name: plan.keys.field(position).type for plan in plans}
        if len(set(types.values())) > 1:
            listed = ", ".join(f"{name} {type_name(type_)}" for name, type_ in types.items())
            odd = next(plan for plan in plans if not pa.types.is_string(types[plan.name]))
            example = f'{odd.name} = "try_cast({odd.sources[position]} as string)"'
            problems.append(
                f"{_where_of_key(query, position)}: key {key.name} is not of one type: "
                f"{listed}; give it columns and cast there, e.g. {example}"
            )
    _raise(problems)
    return plans


def _where_of_key(query: Query, position: int) -> str:
    return query.where(*query.place(query.tree.root.name, "on", position))


def _raise(problems: list[str]) -> None:
    if problems:
        raise QueryError("\n".join(dict.fromkeys(problems)))


def join_spec(query: Query, operator: int = 0) -> JoinSpec:
    """The query's join as the engine knows it. Raises QueryError."""
    plans = compile_streams(query)
    inputs = tuple(InputSpec(plan.name, plan.payload) for plan in plans)
    return JoinSpec(operator, plans[0].keys, inputs)


class WantedKey(NamedTuple):
    """A key of a plan: its column's name, what it is, and where that stands, for messages."""

    name: str
    source: str
    where: str


def compile_leaf(
    query: Query, name: str, index: int, wanted: Sequence[WantedKey], problems: list[str]
) -> StreamPlan:
    """The plan of one leaf with these keys; what is wrong is added to `problems`."""
    stream = query.stream(name)
    rules = stream.rules
    schema = columns.row_schema(rules)
    names = frozenset(schema.names)
    reads: set[str] = set()
    if stream.filter is not None:
        reads |= columns_of(stream.filter, names)
        where = query.where("streams", name, "filter")
        for problem in _filter_problems(stream.filter, _only(schema, reads)):
            problems.append(f"{where}: filter of {name}: {problem}")
    keys, sources, plain = [], [], []
    for key, source, where in wanted:
        column = plain_column(source)
        type_ = pa.string()
        try:
            if column:
                type_ = schema.field(column).type
            else:
                used = columns_of(source, names)
                reads |= used
                type_ = type_of(source, _only(schema, used))
            if not _may_be_key(type_):
                problems.append(f"{where}: a join key is {KEY_TYPES}, not {type_name(type_)}")
        except EvaluationError as error:
            problems.append(f"{where}: {error}")
        keys.append(pa.field(key, type_, nullable=False))
        sources.append(column or source)
        plain.append(column is not None)
    return StreamPlan(
        name=name,
        topic=query.topic(name),
        index=index,
        keys=pa.schema(keys),
        payload=pa.schema([(rule.name, columns.arrow_type(rule)) for rule in query.payload(name)]),
        rules=rules,
        sources=tuple(sources),
        plain=tuple(plain),
        filter=stream.filter,
        reads=tuple(sorted(reads)),
    )


def _only(schema: Any, names: AbstractSet[str]) -> Any:
    return pa.schema([field for field in schema if field.name in names])


def _filter_problems(expression: str, schema: Any) -> Iterator[str]:
    try:
        type_ = type_of(expression, schema)
    except EvaluationError as error:
        yield str(error)
        return
    if not pa.types.is_boolean(type_):
        yield f"a filter is true or false, this is {type_name(type_)}"


def type_name(type_: Any) -> str:
    """A type as a query file writes it."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp"
    names = {pa.int64(): "int", pa.float64(): "double", pa.date32(): "date"}
    return names.get(type_, str(type_))


def _may_be_key(type_: Any) -> bool:
    """Doubles are left out: 0.1 + 0.2 equals no 0.3, so they join by accident only."""
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_int64(type_)
        or kinds.is_boolean(type_)
        or kinds.is_date32(type_)
        or kinds.is_timestamp(type_)
        or kinds.is_decimal128(type_)
    )
