"""Plans: what decoding one stream needs to know, compiled from the query on the driver.

A plan is small, holds no open thing and pickles, so it travels to the workers inside the task.
Everything that can be wrong with a query is found here, before the first row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from spillway.decode import rules as columns
from spillway.decode.expressions import EvaluationError, type_of
from spillway.decode.formats.decoder import FormatError, usable
from spillway.engine.join.planning import tree_plan
from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.join.tree import TreeSpec, one_join
from spillway_schemas.expressions import columns_of, plain_column
from spillway_schemas.formats import JSON, ValueFormat, Writers
from spillway_schemas.join_tree import KeySource, NamedKey, TreeJoin
from spillway_schemas.messages import FieldRule, Message, contract
from spillway_schemas.query import Query, QueryError


@dataclass(frozen=True)
class StreamPlan:
    """How the values of one leaf become rows of the tree's input number `index`."""

    name: str
    """The leaf's."""
    topic: str
    index: int
    keys: Any
    """pa.Schema: the key columns of the join that reads the leaf, not null, in its order."""
    payload: Any
    """pa.Schema: the other columns that go into the join. Those that are not null are keys of joins
    above."""
    rules: tuple[FieldRule, ...] = ()
    """The contract's fields."""
    sources: tuple[str, ...] = ()
    """For each key, then each column of the payload, the column or the expression that it comes
    from."""
    plain: tuple[bool, ...] = ()
    """For each of them whether its source is a column."""
    also: tuple[tuple[str, Any], ...] = ()
    """Expressions, with their types, that are keys of other readings of the stream: a message in
    which one is null is rejected by all readings alike."""
    filter: str | None = None
    time: str | None = None
    """The field that windows go by."""
    day_time: str | None = None
    """The field by which rows are held against their session's day; `time`, where that is given."""
    reads: tuple[str, ...] = field(default=())
    """Columns that filter and expressions read."""
    format: ValueFormat = field(default_factory=ValueFormat)
    writers: Writers | None = field(default=None, compare=False)
    """Who knows the schemas of values that begin with an id: see `spillway.registry`."""

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


@dataclass(frozen=True)
class CompiledQuery:
    """What the engine needs of a query."""

    spec: TreeSpec
    streams: tuple[StreamPlan, ...]
    """One for each leaf."""


def compile_streams(query: Query) -> tuple[StreamPlan, ...]:
    """One plan per leaf of the query. Raises QueryError with file and line."""
    return compile_query(query).streams


def tree_spec(query: Query) -> TreeSpec:
    """The query's joins as the engine knows them. Raises QueryError."""
    return compile_query(query).spec


def plans_for(query: Query, keys: Mapping[str, Sequence[str]]) -> tuple[StreamPlan, ...]:
    """How each leaf's messages are read for its keys (expressions over its columns, which are the
    columns' names) and the fields that results show. Raises QueryError with file and line."""
    compiler = _Compiler(query)
    compiler.check()
    return tuple(
        compiler.stream(
            leaf,
            index,
            [(text, KeySource(leaf, text)) for text in texts],
            [(each.name, KeySource.column(leaf, each.name)) for each in query.payload(leaf)],
        )
        for index, (leaf, texts) in enumerate(keys.items())
    )


def compile_query(query: Query) -> CompiledQuery:
    """Compile a query. Raises QueryError with file and line, all problems at once."""
    compiler = _Compiler(query)
    compiler.check()
    if query.is_single:
        single = tuple(
            compiler.stream(
                name,
                i,
                [(key.name, query.tree.source(key, name)) for key in query.tree.root.keys],
                [(each.name, KeySource.column(name, each.name)) for each in query.payload(name)],
            )
            for i, name in enumerate(query.inputs)
        )
        timed = query.is_windowed
        inputs = tuple(
            InputSpec(each.name, each.payload, timed=timed, optional=each.name in query.optional)
            for each in single
        )
        join = JoinSpec(0, single[0].keys, inputs, query.spans[0])
        return CompiledQuery(one_join(join), single)
    plan = tree_plan(query, compiler.type_of)
    streams = []
    for name in query.inputs:
        leaf = plan.leaves[name]
        join = plan.spec.join_of_input(leaf.input)
        payload = plan.spec.inputs[leaf.input].payload
        streams.append(
            compiler.stream(
                name,
                leaf.input,
                list(zip(join.keys.names, leaf.keys, strict=True)),
                list(zip(payload.names, leaf.payload, strict=True)),
            )
        )
    return CompiledQuery(plan.spec, tuple(streams))


class _Compiler:
    """The types of a query's expressions, and what is wrong with them."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.rules = {name: query.stream(name).rules for name in query.inputs}
        self.schemas = {name: columns.row_schema(rules) for name, rules in self.rules.items()}
        self.problems: list[str] = []
        self.formats = {name: self._format(name) for name in query.inputs}
        self._raise()

    def _format(self, name: str) -> ValueFormat:
        """How a leaf's values are written, with its files compiled. Notes what cannot be used."""
        found = self.query.stream(name).value_format
        if found.name == JSON:
            return found
        try:
            return usable(found, self.rules[name])
        except FormatError as error:
            where = self.query.where("streams", self.query.stream_name(name), "format")
            self.problems.append(f"{where}: {error}")
            return found

    def type_of(self, source: KeySource) -> pa.DataType:
        """The type of an expression over a leaf's columns. Raises EvaluationError."""
        schema = self.schemas[source.leaf]
        if column := plain_column(source.expression):
            return schema.field(column).type
        return type_of(
            source.expression, _only(schema, columns_of(source.expression, frozenset(schema.names)))
        )

    def check(self) -> None:
        """Raise QueryError for filters that are no conditions and keys that cannot be compared."""
        for name in self.query.inputs:
            self._check_filter(name)
            for join in self.query.tree.joins:
                if name in join.inputs:
                    self._check_keys(join, [name])
        for join in self.query.tree.joins:
            self._check_keys(join, [i for i in join.inputs if i not in self.query.inputs])
        self._raise()
        for join in self.query.tree.joins:
            for position, key in enumerate(join.keys):
                self._check_types(join, position, key)
        self._raise()

    def _raise(self) -> None:
        if self.problems:
            raise QueryError("\n".join(dict.fromkeys(self.problems)))

    def _where(self, join: TreeJoin, position: int) -> str:
        return self.query.where(*self.query.place(join.name, "on", position))

    def _check_filter(self, name: str) -> None:
        stream = self.query.stream(name)
        if stream.filter is None:
            return
        where = self.query.where("streams", self.query.stream_name(name), "filter")
        used = columns_of(stream.filter, frozenset(self.schemas[name].names))
        for problem in _filter_problems(stream.filter, _only(self.schemas[name], used)):
            self.problems.append(f"{where}: filter of {name}: {problem}")

    def _check_keys(self, join: TreeJoin, inputs: Sequence[str]) -> None:
        for name in inputs:
            for position, key in enumerate(join.keys):
                where = f"{self._where(join, position)}: key {key.name} of {name}"
                source = self.query.tree.source(key, name)
                try:
                    type_ = self.type_of(source)
                except EvaluationError as error:
                    self.problems.append(f"{where}: {error}")
                    continue
                if not _may_be_key(type_):
                    problem = f"a join key is {KEY_TYPES}, not {type_name(type_)}"
                    if pa.types.is_floating(type_) and plain_column(source.expression):
                        problem += "; give the field the type decimal(p,s)"
                    self.problems.append(f"{where}: {problem}")

    def _check_types(self, join: TreeJoin, position: int, key: NamedKey) -> None:
        sources = {name: self.query.tree.source(key, name) for name in join.inputs}
        types = {name: self.type_of(source) for name, source in sources.items()}
        if len(set(types.values())) == 1:
            return
        listed = ", ".join(f"{name} {type_name(type_)}" for name, type_ in types.items())
        where = f"{self._where(join, position)}: key {key.name} is not of one type: {listed}"
        if not any(map(pa.types.is_string, types.values())):
            self.problems.append(f"{where}; give the streams' fields one type")
            return
        odd = next(name for name in join.inputs if not pa.types.is_string(types[name]))
        written = sources[odd].expression
        if self.query.tree.join(odd) is not None and plain_column(written):
            written = f"{sources[odd].leaf}.{written}"
        example = f'{odd} = "try_cast({written} as string)"'
        self.problems.append(f"{where}; give it columns and cast there, e.g. {example}")

    def stream(
        self,
        name: str,
        index: int,
        keys: Sequence[tuple[str, KeySource]],
        payload: Sequence[tuple[str, KeySource]],
    ) -> StreamPlan:
        """The plan of a leaf, by the names and sources of its columns."""
        schema, query = self.schemas[name], self.query
        named = [*keys, *payload]
        plain = [plain_column(source.expression) for _, source in named]
        reads: set[str] = set()
        texts = [
            source.expression
            for (_, source), column in zip(named, plain, strict=True)
            if not column
        ]
        also = self._keys_elsewhere(name)
        texts += also
        for text in [*texts, *filter(None, [query.stream(name).filter])]:
            reads |= columns_of(text, frozenset(schema.names))
        of_keys = set(query.key_sources(name))
        return StreamPlan(
            name=name,
            topic=query.topic(name),
            index=index,
            keys=pa.schema([pa.field(key, self.type_of(source), False) for key, source in keys]),
            payload=pa.schema(
                [
                    pa.field(
                        column,
                        self.type_of(source),
                        query.is_single or source.expression not in of_keys,
                    )
                    for column, source in payload
                ]
            ),
            rules=self.rules[name],
            sources=tuple(
                column or source.expression
                for column, (_, source) in zip(plain, named, strict=True)
            ),
            plain=tuple(column is not None for column in plain),
            also=tuple((text, self.type_of(KeySource(name, text))) for text in also),
            filter=query.stream(name).filter,
            time=query.time(name),
            day_time=query.stream(name).time,
            reads=tuple(sorted(reads)),
            format=self.formats[name],
        )

    def _keys_elsewhere(self, name: str) -> list[str]:
        """Keys that other readings of a leaf's stream have, and this one has not."""
        query = self.query
        others = [n for n in query.inputs if query.stream_name(n) == query.stream_name(name)]
        own = set(query.key_sources(name))
        return [
            text
            for text in dict.fromkeys(t for other in others for t in query.key_sources(other))
            if text not in own
        ]


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
