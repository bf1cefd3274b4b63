"""Query: which streams are joined, on what, and what the results carry.

A query is a TOML file::

    [streams.stock]
    schema = "stock"                 # a shipped contract; topic = the stream's name

    [streams.trade]
    topic = "trades-v2"
    fields = { ticker = "string", ts = "timestamp", price = "decimal(18,4)", note = "string?" }
    filter = "price > 0"             # rows for which it is not true are left out

    [join]
    inputs = ["stock", "trade"]
    on = [
      { name = "symbol", columns = { stock = "symbol", trade = "ticker" } },
      { name = "minute", expression = "date_trunc('minute', ts)" },
    ]                                # "symbol" alone: the column of that name in each input

    [results]
    columns = ["trade.price"]        # default: every field that is not itself a join key

The model holds a tree of joins (an input may be a join), so that files written for trees keep
their form; `leaves` compiles a single join only and says so.

Invariants: after `load_query` every name that the query uses exists, expressions hold allowed
tokens only (`spillway_schemas.expressions`), and no two result columns have the same name, whatever
their case (Spark and Delta do not tell case apart). Types of expressions are checked where they
are evaluated, by `spillway.decode.compile_streams`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    model_validator,
)

from spillway_schemas.exits import USAGE
from spillway_schemas.expressions import ExpressionError, columns_of, normalised, plain_column
from spillway_schemas.messages import NAME, SHIPPED, FieldRule, fields_of, rule
from spillway_schemas.tomlfile import Key, TomlError, TomlFile, read_toml
from spillway_schemas.topic_name import topic_name

SHIPPED_QUERIES = Path(__file__).parent / "queries"
RESULT_COLUMNS = frozenset({"session_date", "epoch", "phase", "committed_at"})
"""Columns that every result has beside those of the query."""


class QueryError(ValueError):
    """A query that cannot be used. One line for each problem: file, line, what is allowed."""

    exit_code = USAGE


class _Misplaced(ValueError):
    """What is wrong with one place of a part; `place` is below the part's own."""

    def __init__(self, message: str, *place: str) -> None:
        super().__init__(message)
        self.place = place


class QueryPart(BaseModel):
    """Base of a query's parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StreamInput(QueryPart):
    """One Kafka input: its topic, its contract and which of its rows are wanted."""

    topic: Annotated[str, AfterValidator(topic_name)] | None = None
    """None: the stream's name."""
    contract: str | None = Field(default=None, alias="schema")
    """A shipped contract; or `fields`."""
    fields: dict[str, str] | None = None
    filter: str | None = None

    @model_validator(mode="after")
    def _one_contract(self) -> Self:
        if (self.contract is None) == (self.fields is None):
            raise ValueError("give either schema (a shipped contract) or fields (your own)")
        if self.contract is not None and self.contract not in SHIPPED:
            raise _Misplaced(
                f"there is no schema {self.contract!r}; there are: {_list(SHIPPED)}", "schema"
            )
        if self.fields is not None:
            if not self.fields:
                raise _Misplaced("it is empty; write for example symbol = 'string'", "fields")
            for name, text in self.fields.items():
                try:
                    rule(name, text)
                except ValueError as error:
                    raise _Misplaced(str(error), "fields", name) from error
        return self

    @property
    def rules(self) -> tuple[FieldRule, ...]:
        """The contract's fields in order."""
        if self.contract is not None:
            return fields_of(SHIPPED[self.contract])
        return tuple(rule(name, text) for name, text in (self.fields or {}).items())


class JoinKey(QueryPart):
    """One join key: a column of the same name in each input, or one expression, or one each."""

    name: str
    expression: str | None = None
    columns: dict[str, str] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if not NAME.fullmatch(self.name):
            raise _Misplaced(
                f"{self.name!r} is no column name: letters, digits and _ are allowed", "name"
            )
        if self.expression is not None and self.columns is not None:
            raise ValueError("give expression (the same for all inputs) or columns, not both")
        return self

    def source(self, stream: str) -> str | None:
        """The expression that gives this key in `stream`; None: not given for it."""
        if self.columns is not None:
            return self.columns.get(stream)
        return self.expression if self.expression is not None else self.name


def _key_kind(value: object) -> str:
    return "name" if isinstance(value, str) else "table"


def _input_kind(value: object) -> str:
    return "stream" if isinstance(value, str) else "join"


class Join(QueryPart):
    """An m-way join of streams (and, in the file's form, of joins)."""

    inputs: list[
        Annotated[
            Annotated[str, Tag("stream")] | Annotated[Join, Tag("join")],
            Discriminator(_input_kind),
        ]
    ] = Field(min_length=2)
    on: list[
        Annotated[
            Annotated[str, Tag("name")] | Annotated[JoinKey, Tag("table")],
            Discriminator(_key_kind),
        ]
    ] = Field(min_length=1)

    @property
    def keys(self) -> tuple[JoinKey, ...]:
        """The join keys in order."""
        return tuple(key if isinstance(key, JoinKey) else JoinKey(name=key) for key in self.on)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The streams of this join. Raises NotImplementedError for a join of joins."""
        for each in self.inputs:
            if isinstance(each, Join):
                raise NotImplementedError(
                    "a join as an input of a join is not supported; supported: one join of two "
                    "or more streams on common keys"
                )
        return tuple(each for each in self.inputs if isinstance(each, str))


class Results(QueryPart):
    """What results carry beside keys and coordinates."""

    columns: list[str] | None = None
    """`stream.field`; None: every field that is not itself a join key."""


class Query(QueryPart):
    """A whole query. Made by `load_query` or `parse_query`."""

    streams: dict[str, StreamInput] = Field(min_length=2)
    join: Join
    results: Results = Results()

    _name: str = PrivateAttr(default="")
    _file: TomlFile | None = PrivateAttr(default=None)

    @property
    def name(self) -> str:
        """The shipped name or the file's stem, for people."""
        return self._name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the joined streams, in the order of the join's inputs."""
        return self.join.leaves

    @property
    def topics(self) -> tuple[str, ...]:
        """The Kafka topics, in the order of the join's inputs; each once."""
        return tuple(map(self.topic, self.inputs))

    def topic(self, stream: str) -> str:
        """The Kafka topic of a stream."""
        return self.streams[stream].topic or stream

    def payload(self, stream: str) -> tuple[FieldRule, ...]:
        """Fields of `stream` that results carry, in the contract's order."""
        rules = self.streams[stream].rules
        if self.results.columns is not None:
            wanted = set(self.results.columns)
            return tuple(each for each in rules if f"{stream}.{each.name}" in wanted)
        keys = {plain_column(key.source(stream) or "") for key in self.join.keys}
        return tuple(each for each in rules if each.name not in keys)

    def where(self, *key: str | int) -> str:
        """`file:line` of a place in the query, for messages."""
        return self._file.where(key) if self._file is not None else self._name or "query"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what the query means: contracts, filters, keys, columns. Not of its
        name, comments, spaces or of whether a contract was shipped or written out."""
        meaning = {
            "streams": [
                {
                    "name": stream,
                    "topic": self.topic(stream),
                    "fields": [[r.name, r.type, r.ge, r.le] for r in self.streams[stream].rules],
                    "filter": normalised(self.streams[stream].filter or ""),
                    "keys": [normalised(key.source(stream) or "") for key in self.join.keys],
                    "payload": [each.name for each in self.payload(stream)],
                }
                for stream in self.inputs
            ],
            "keys": [key.name for key in self.join.keys],
        }
        text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def shipped_queries() -> list[str]:
    """Names that `load_query` knows without a path."""
    return sorted(path.stem for path in SHIPPED_QUERIES.glob("*.toml"))


def load_query(name: str) -> Query:
    """Load a query by shipped name, or by path (ends in .toml or holds a /). Raises QueryError."""
    path = Path(name)
    if not (name.endswith(".toml") or "/" in name):
        path = SHIPPED_QUERIES / f"{name}.toml"
        if not path.exists():
            near = difflib.get_close_matches(name, shipped_queries(), n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise QueryError(
                f"there is no shipped query {name!r}{hint} Shipped: {_list(shipped_queries())}; "
                "or give the path of a .toml file"
            )
    try:
        file = read_toml(path)
    except TomlError as error:
        raise QueryError(str(error)) from None
    return query_of(file)


def query_of(file: TomlFile) -> Query:
    """Check a parsed file and make the query. Raises QueryError with one line per problem."""
    try:
        query = Query.model_validate(file.data)
    except ValidationError as error:
        raise QueryError("\n".join(dict.fromkeys(_explain(error, file)))) from None
    query._name = file.path.stem
    query._file = file
    if problems := list(_problems(query)):
        raise QueryError("\n".join(dict.fromkeys(problems)))
    return query


# ------------------------------------------------------------------------------------ checks


def _problems(query: Query) -> Iterator[str]:
    """Everything that no single part can know."""
    try:
        inputs = query.inputs
    except NotImplementedError as error:
        yield f"{query.where('join', 'inputs')}: {error}"
        return
    unknown = [name for name in inputs if name not in query.streams]
    for name in unknown:
        yield (
            f"{query.where('join', 'inputs')}: there is no stream {name!r}; "
            f"there are: {_list(query.streams)}"
        )
    if unknown:
        return
    if len(set(inputs)) < len(inputs):
        yield (
            f"{query.where('join', 'inputs')}: a stream is joined with itself, which is not "
            "supported; send its messages to two topics"
        )
    for name in query.streams:
        if not NAME.fullmatch(name):
            yield f"{query.where('streams', name)}: {name!r} is no name: use letters, digits, _"
        if name not in inputs:
            yield f"{query.where('streams', name)}: stream {name} is no input of the join"
    topics = [query.topic(name) for name in query.streams]
    if twice := {topic for topic in topics if topics.count(topic) > 1}:
        yield (
            f"{query.where('streams')}: topic {_list(twice)} feeds two streams, which is not "
            "supported; one topic is one stream"
        )
    for name in inputs:
        yield from _stream_problems(query, name)
    yield from _key_problems(query)
    yield from _column_problems(query)


def _stream_problems(query: Query, name: str) -> Iterator[str]:
    stream = query.streams[name]
    if stream.filter is not None:
        try:
            columns_of(stream.filter, frozenset(each.name for each in stream.rules))
        except ExpressionError as error:
            yield f"{query.where('streams', name, 'filter')}: filter of {name}: {error}"
    for twice in _same([each.name for each in stream.rules]):
        yield (
            f"{query.where('streams', name, 'fields')}: {twice} differ only in case; "
            "Spark and Delta take them for one column"
        )


def _key_problems(query: Query) -> Iterator[str]:
    for position, key in enumerate(query.join.keys):
        where = query.where("join", "on", position)
        for extra in sorted(set(key.columns or ()) - set(query.inputs)):
            yield f"{where}: key {key.name}: {extra!r} is no input; there are {_list(query.inputs)}"
        for stream in query.inputs:
            columns = frozenset(each.name for each in query.streams[stream].rules)
            source = key.source(stream)
            if source is None:
                yield f"{where}: key {key.name}: columns says nothing for input {stream}"
                continue
            try:
                columns_of(source, columns)
            except ExpressionError as error:
                yield f"{where}: key {key.name} of {stream}: {error}"
    for twice in _same([key.name for key in query.join.keys]):
        yield f"{query.where('join', 'on')}: two keys of the same name: {twice}"


def _column_problems(query: Query) -> Iterator[str]:
    where = query.where("results", "columns") if query.results.columns else query.where("join")
    for each in query.results.columns or ():
        stream, _, field = each.partition(".")
        names = [r.name for r in query.streams[stream].rules] if stream in query.inputs else []
        if field not in names:
            allowed = [f"{s}.{r.name}" for s in query.inputs for r in query.streams[s].rules]
            yield f"{where}: there is no {each!r}; there are: {_list(allowed)}"
    listed = query.results.columns or []
    for each in dict.fromkeys(each for each in listed if listed.count(each) > 1):
        yield f"{where}: {each!r} is there twice; name each column once"
    names = [key.name for key in query.join.keys] + sorted(RESULT_COLUMNS)
    for stream in query.inputs:
        names += [f"{stream}_{each.name}" for each in query.payload(stream)]
        names += [f"{stream}_partition", f"{stream}_offset"]
    for twice in _same(names):
        yield (
            f"{where}: two columns of the results would be called {twice}; rename a stream or "
            "key, or leave a field out with results.columns"
        )


def _same(names: list[str]) -> list[str]:
    """Groups of names that are the same but for case, as text."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.lower(), []).append(name)
    return [", ".join(dict.fromkeys(group)) for group in groups.values() if len(group) > 1]


_TAGS = frozenset({"name", "table", "stream", "join"})


def _explain(error: ValidationError, file: TomlFile) -> list[str]:
    lines = []
    for item in error.errors(include_url=False):
        # pydantic puts the tag of a union's variant behind the index of the element.
        loc = item["loc"]
        key: Key = tuple(
            part
            for before, part in zip((None, *loc), loc, strict=False)
            if not (isinstance(before, int) and part in _TAGS)
        )
        if isinstance(cause := item.get("ctx", {}).get("error"), _Misplaced):
            key = (*key, *cause.place)
        dotted = ".".join(str(part) for part in key)
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = f"there is no such key; allowed: {_allowed(key)}"
        elif item["type"] == "missing":
            text = "missing"
        elif item["type"] == "too_short":
            least = item["ctx"]["min_length"]
            text = "at least one is needed" if least == 1 else f"at least {least} are needed"
        lines.append(f"{file.where(key)}: {dotted}: {text[:1].lower()}{text[1:]}")
    return lines


def _allowed(key: Key) -> str:
    part: type[QueryPart] = Query
    if key[0] == "streams" and len(key) > 2:
        part = StreamInput
    elif key[0] == "join" and len(key) > 1:
        part = JoinKey if "on" in key else Join
    elif key[0] == "results" and len(key) > 1:
        part = Results
    return _list(info.alias or name for name, info in part.model_fields.items())


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) if isinstance(names, set | frozenset) else ", ".join(names)
