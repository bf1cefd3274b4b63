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

Several joins have a name each, and one may be an input of another::

    [join.quoted]
    inputs = ["trade", "quote"]
    on = ["symbol"]

    [join.named]
    inputs = ["quoted", "company"]
    on = [{ name = "company", columns = { quoted = "trade.company_id", company = "id" } }]

`spillway_schemas.join_tree` says what a key may be there.

Values are JSON, or what a stream says (`spillway_schemas.formats`)::

    [streams.trade]
    format = "avro"                  # or "protobuf"; each value begins with its schema's id
    reader = "trade.avsc"            # what values are resolved to; default: as they were written
    fields = { ticker = "string", ts = "timestamp" }

    [streams.quote]
    format = "protobuf"
    writer = "quote.proto"           # of all values, which have no id
    message = "desk.Quote"
    fields = { ticker = "string", bid = "double" }

A join may be bounded in time (`spillway_schemas.windows`)::

    [streams.stock]
    schema = "stock"
    time = "ts"                      # of every stream below a join with a window

    [join]
    inputs = ["stock", "volume"]
    on = ["symbol"]
    window = "10 minutes"            # or: within = { volume = "-5 seconds .. 1 minute" }, of stock
    lateness = "2 minutes"           # how long a row is waited for; default: 0 seconds
    idle_after = "5 minutes"         # a partition without rows is not waited for; default: it is
    ahead = "5 minutes"              # a clock that is more ahead of Kafka's is wrong

Results may do without some of the streams (a left join; of all: a full outer join)::

    [join]
    inputs = ["trade", "review"]
    on = ["symbol"]
    optional = ["review"]            # keys without a row of it give results, too, after the close

Invariants: after `load_query` every name that the query uses exists, expressions hold allowed
tokens only (`spillway_schemas.expressions`), and no two result columns have the same name, whatever
their case (Spark and Delta do not tell case apart). Types of expressions are checked where they
are evaluated, by `spillway.decode.compile_streams`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
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

from spillway_schemas.durations import duration_us
from spillway_schemas.exits import USAGE
from spillway_schemas.expressions import (
    ExpressionError,
    column_text,
    columns_of,
    normalised,
    plain_column,
)
from spillway_schemas.formats import AVRO, JSON, PROTOBUF, SHIPPED_FORMATS, SchemaFile, ValueFormat
from spillway_schemas.join_tree import JoinTree, KeySource, Leaf, NamedKey, leaf_of, tree_of
from spillway_schemas.journal import EventTime, QueryText
from spillway_schemas.messages import NAME, SHIPPED, FieldRule, fields_of, rule
from spillway_schemas.tomlfile import Key, TomlError, TomlFile, parse_toml, read_toml
from spillway_schemas.topic_name import topic_name
from spillway_schemas.windows import AHEAD_US, Span, band_us, slice_us

SHIPPED_QUERIES = Path(__file__).parent / "queries"
SINGLE = "join"
"""What a query's only join is called where it has no name."""
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
    time: str | None = None
    """When a row happened: a timestamp that is never null. Windows go by it, and rows are counted
    whose time lies outside their session's day."""
    format: str = JSON
    """How values are written: `json`, `avro`, `protobuf` or a decoder's entry point."""
    writer: str | None = None
    """The file with the schema of all values; None: each value has its schema's id."""
    reader: str | None = None
    """The file with the schema that values are resolved to."""
    message: str | None = None
    """Of Protobuf: which message of the file."""
    options: dict[str, str] | None = None
    """Of a decoder by entry point."""

    _value_format: ValueFormat = PrivateAttr(default=ValueFormat())

    @property
    def value_format(self) -> ValueFormat:
        """How values are written, with the schemas that files hold."""
        return self._value_format

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        for name in ("writer", "reader"):
            if getattr(self, name) is not None and self.format not in (AVRO, PROTOBUF):
                raise _Misplaced(f"{self.format} has no schemas: leave it out", name)
        if self.message is not None:
            if self.format != PROTOBUF:
                raise _Misplaced("only protobuf has messages: leave it out", "message")
            if self.writer is None and self.reader is None:
                raise _Misplaced(
                    "it is of a file: give writer or reader. Values with ids name their message",
                    "message",
                )
        if self.options is not None and self.format in SHIPPED_FORMATS:
            raise _Misplaced(f"{self.format} has no options: leave it out", "options")
        return self

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

    def named(self, inputs: Iterable[str]) -> NamedKey:
        """The key with what it is in every input that it says something of."""
        if self.columns is not None:
            return NamedKey(self.name, dict(self.columns))
        text = self.expression if self.expression is not None else column_text(self.name)
        return NamedKey(self.name, dict.fromkeys(inputs, text))


def _placed(parse: Callable[[str], object], text: str, *place: str) -> None:
    try:
        parse(text)
    except ValueError as error:
        raise _Misplaced(str(error), *place) from error


def _key_kind(value: object) -> str:
    return "name" if isinstance(value, str) else "table"


_PATIENCE = ("lateness", "idle_after", "ahead")
"""Keys of a join that say how long is waited, and for what."""
_LENGTHS = ("window", *_PATIENCE)
"""Keys of a join whose values are lengths of time."""


class Join(QueryPart):
    """An m-way join. An input is a stream, `"<stream> as <name>"`, or the name of a join."""

    inputs: list[str] = Field(min_length=2)
    on: list[
        Annotated[
            Annotated[str, Tag("name")] | Annotated[JoinKey, Tag("table")],
            Discriminator(_key_kind),
        ]
    ] = Field(min_length=1)
    window: str | None = None
    """Rows join when all their times lie within so much."""
    within: dict[str, str] | None = None
    """Or: for each further input a band around the time of the first, `low .. high`."""
    lateness: str | None = None
    """How long rows are waited for. This and what follows is of the whole query."""
    idle_after: str | None = None
    """A partition without rows for so long is not waited for."""
    ahead: str | None = None
    """How much a row's time may be ahead of Kafka's."""
    optional: list[str] | None = Field(default=None, min_length=1)
    """Inputs that a result may lack where they have no row of its key."""

    @model_validator(mode="after")
    def _one_window(self) -> Self:
        for name in _LENGTHS:
            if (text := getattr(self, name)) is not None:
                _placed(duration_us, text, name)
        if self.idle_after is not None and not duration_us(self.idle_after):
            raise _Misplaced(
                "no partition brings rows all the time: give it a length, or leave it out to wait "
                "for every partition",
                "idle_after",
            )
        if self.window is not None and self.within is not None:
            raise ValueError("give window (all inputs alike) or within (bands), not both")
        for input_, text in (self.within or {}).items():
            _placed(band_us, text, "within", input_)
        if self.window is None and self.within is None:
            for name in _PATIENCE:
                if getattr(self, name) is not None:
                    raise _Misplaced("it is of a window: give the join window or within", name)
        return self

    @property
    def span(self) -> Span | None:
        """Which times join; None: all."""
        names = [leaf_of(each).name for each in self.inputs]
        if self.window is not None:
            return Span.within(len(names), duration_us(self.window))
        if self.within is not None:
            return Span.around([band_us(self.within[name]) for name in names[1:]])
        return None

    @property
    def keys(self) -> tuple[JoinKey, ...]:
        """The join keys in order."""
        return tuple(key if isinstance(key, JoinKey) else JoinKey(name=key) for key in self.on)

    @property
    def named_keys(self) -> tuple[NamedKey, ...]:
        """The keys with what each is in every input that it says something of."""
        names = [leaf_of(each).name for each in self.inputs]
        return tuple(key.named(names) for key in self.keys)


def _join_kind(value: object) -> str:
    """`[join]` or `[join.NAME]`: only a single join has inputs or keys of its own."""
    single = isinstance(value, dict) and any(
        isinstance(value.get(name), list) for name in Join.model_fields
    )
    return "join" if single or not isinstance(value, dict) or not value else "joins"


class Results(QueryPart):
    """What results carry beside keys and coordinates."""

    columns: list[str] | None = None
    """`stream.field`; None: every field that is not itself a join key."""


class Query(QueryPart):
    """A whole query. Made by `load_query` or `parse_query`."""

    streams: dict[str, StreamInput] = Field(min_length=1)
    join: Annotated[
        Annotated[Join, Tag("join")] | Annotated[dict[str, Join], Tag("joins")],
        Discriminator(_join_kind),
    ]
    results: Results = Results()

    _name: str = PrivateAttr(default="")
    _file: TomlFile | None = PrivateAttr(default=None)
    _tree: JoinTree | None = PrivateAttr(default=None)

    @property
    def name(self) -> str:
        """The shipped name or the file's stem, for people."""
        return self._name

    @property
    def text(self) -> QueryText:
        """The file as it was written, for the journal."""
        assert self._file is not None, "made by query_of"
        return QueryText(path=str(self._file.path), text=self._file.text)

    @property
    def joins(self) -> dict[str, Join]:
        """The joins by name, in the file's order; a single one is called `join`."""
        return {SINGLE: self.join} if isinstance(self.join, Join) else self.join

    @property
    def tree(self) -> JoinTree:
        """The joins as a tree."""
        assert self._tree is not None, "made by query_of"
        return self._tree

    @cached_property
    def spans(self) -> tuple[Span | None, ...]:
        """Which times each join of the tree joins; None: all."""
        return tuple(self.joins[join.name].span for join in self.tree.joins)

    @property
    def is_windowed(self) -> bool:
        """Whether any join is bounded in time."""
        return any(span is not None for span in self.spans)

    def is_timed(self, join: str) -> bool:
        """Whether the inputs of a join have times: it has a window, or a join above it has."""
        return any(
            span is not None and join in self.tree.joins_below(each.name)
            for each, span in zip(self.tree.joins, self.spans, strict=True)
        )

    def time(self, leaf: str) -> str | None:
        """The field of a leaf that windows go by; None: no window asks for it."""
        return self.stream(leaf).time if self.stream_name(leaf) in self.timed_streams else None

    @cached_property
    def timed_streams(self) -> dict[str, str]:
        """The streams that windows ask for their times, and a join that does. Of a stream that
        several leaves read one is enough: a message has one verdict for all."""
        return {
            self.stream_name(each): join.name
            for join in self.tree.joins
            if self.is_timed(join.name)
            for each in join.inputs
            if self.tree.join(each) is None
        }

    @cached_property
    def event_time(self) -> EventTime | None:
        """What the query says of time; None: it has no window."""
        if not self.is_windowed:
            return None
        said = {
            name: duration_us(text)
            for name in _PATIENCE
            for join in self.joins.values()
            if (text := getattr(join, name)) is not None
        }
        idle_after_us = said.get("idle_after")
        return EventTime(
            lateness_us=said.get("lateness", 0),
            idle_after_ms=None if idle_after_us is None else idle_after_us // 1000,
            ahead_us=said.get("ahead", AHEAD_US),
            topics=sorted({self.topic(leaf) for leaf in self.inputs if self.time(leaf)}),
            kept_us=max(span.width_us + slice_us(span) for span in self.spans if span is not None)
            if None not in self.spans
            else None,
        )

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """The leaves that a result may lack, in the order of the inputs; of an inner join none."""
        root = self.joins[self.tree.root.name]
        return tuple(leaf for leaf in self.inputs if leaf in (root.optional or ()))

    @property
    def is_single(self) -> bool:
        """Whether it is one join, of different streams."""
        one_reading = all(leaf.name == leaf.stream for leaf in self.tree.leaves)
        return len(self.joins) == 1 and one_reading

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the leaves: of the streams as the joins read them, in the tree's order."""
        return tuple(leaf.name for leaf in self.tree.leaves)

    @property
    def joined_inputs(self) -> int:
        """How many inputs the joins have together, joins among them."""
        return sum(len(join.inputs) for join in self.tree.joins)

    @property
    def topics(self) -> tuple[str, ...]:
        """The Kafka topics, in the order of the leaves; each once."""
        return tuple(dict.fromkeys(map(self.topic, self.inputs)))

    def stream(self, leaf: str) -> StreamInput:
        """The stream that a leaf reads."""
        return self.streams[self.stream_name(leaf)]

    def stream_name(self, leaf: str) -> str:
        """The name of the stream that a leaf reads."""
        return self._leaf(leaf).stream

    def topic(self, leaf: str) -> str:
        """The Kafka topic of a leaf, or of a stream."""
        name = self._leaf(leaf).stream
        return self.streams[name].topic or name

    def _leaf(self, name: str) -> Leaf:
        leaves = self._tree.leaves if self._tree is not None else ()
        return next((leaf for leaf in leaves if leaf.name == name), Leaf(name, name))

    def payload(self, leaf: str) -> tuple[FieldRule, ...]:
        """Fields of a leaf that results carry, in the contract's order."""
        rules = self.stream(leaf).rules
        if self.results.columns is not None:
            wanted = set(self.results.columns)
            return tuple(each for each in rules if f"{leaf}.{each.name}" in wanted)
        keys = {plain_column(text) for text in self.key_sources(leaf)}
        return tuple(each for each in rules if each.name not in keys)

    def key_sources(self, leaf: str) -> tuple[str, ...]:
        """What a leaf gives to the joins' keys: expressions, those of lower joins first."""
        return tuple(
            source.expression
            for join in self.tree.joins
            for key in join.keys
            for each in join.inputs
            if (source := self.tree.source(key, each)).leaf == leaf
        )

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key columns that results carry: those of all joins, lower ones first, each once."""
        return tuple(dict.fromkeys(key.name for join in self.tree.joins for key in join.keys))

    def place(self, join: str | None, *below: str | int) -> tuple[str | int, ...]:
        """Where a join stands in the file, for `where`."""
        named = () if join is None or isinstance(self.join, Join) else (join,)
        return ("join", *named, *below)

    def where(self, *key: str | int) -> str:
        """`file:line` of a place in the query, for messages."""
        return self._file.where(key) if self._file is not None else self._name or "query"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what the query means: contracts, filters, keys, columns. Not of its
        name, comments, spaces or of whether a contract was shipped or written out."""
        tree = self.tree
        formats = {leaf: self.stream(leaf).value_format.meaning for leaf in self.inputs}
        meaning: dict[str, object] = {
            "streams": [
                {
                    "name": leaf,
                    "topic": self.topic(leaf),
                    "fields": [[r.name, r.type, r.ge, r.le] for r in self.stream(leaf).rules],
                    "filter": normalised(self.stream(leaf).filter or ""),
                    "keys": [normalised(text) for text in self.key_sources(leaf)],
                    "payload": [each.name for each in self.payload(leaf)],
                    **({} if formats[leaf] is None else {"format": formats[leaf]}),
                }
                for leaf in self.inputs
            ],
            "keys": [key.name for key in tree.root.keys],
        }
        if len(tree.joins) > 1:
            meaning["joins"] = [
                [
                    join.name,
                    list(join.inputs),
                    [
                        [key.name, *(_meant(tree.source(key, each)) for each in join.inputs)]
                        for key in join.keys
                    ],
                ]
                for join in tree.joins
            ]
        if self.optional:
            meaning["optional"] = list(self.optional)
        if (times := self.event_time) is not None:
            meaning["times"] = [
                {leaf: self.time(leaf) for leaf in self.inputs},
                [times.lateness_us, times.idle_after_ms, times.ahead_us],
                [None if span is None else [span.width_us, span.bands_us] for span in self.spans],
            ]
        text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _meant(source: KeySource) -> list[str]:
    return [source.leaf, normalised(source.expression)]


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


def query_from(kept: QueryText) -> Query:
    """The query of a text that was kept. Raises QueryError for one that this version does not
    take."""
    try:
        file = parse_toml(kept.text, Path(kept.path))
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
    if problems := [*_problems(query), *_read_schemas(query, file)]:
        raise QueryError("\n".join(dict.fromkeys(problems)))
    return query


def _read_schemas(query: Query, file: TomlFile) -> Iterator[str]:
    """Give every stream its format, with what its files hold; what is wrong with them."""
    for name, stream in query.streams.items():
        found: dict[str, SchemaFile] = {}
        for what in ("writer", "reader"):
            if (said := getattr(stream, what)) is None:
                continue
            path = file.path.parent / said
            try:
                found[what] = SchemaFile(path, path.read_bytes())
            except OSError as error:
                where = query.where("streams", name, what)
                yield f"{where}: {path} cannot be read: {error.strerror}"
        options = tuple(sorted((stream.options or {}).items()))
        stream._value_format = ValueFormat(
            stream.format, found.get("writer"), found.get("reader"), stream.message, options
        )


# ------------------------------------------------------------------------------------ checks


def _problems(query: Query) -> Iterator[str]:
    """Everything that no single part can know."""
    for name in query.streams:
        if not NAME.fullmatch(name):
            yield f"{query.where('streams', name)}: {name!r} is not a name: use letters, digits, _"
    columns = {
        name: frozenset(each.name for each in stream.rules)
        for name, stream in query.streams.items()
    }
    joins = {name: (join.inputs, join.named_keys) for name, join in query.joins.items()}
    tree, found = tree_of(joins, columns)
    wrong = [f"{query.where(*query.place(join, *at))}: {message}" for join, at, message in found]
    if tree is None:
        yield from wrong
        return
    query._tree = tree
    read = {leaf.stream for leaf in tree.leaves}
    for name in query.streams:
        if name not in read:
            what = "the join" if isinstance(query.join, Join) else "a join"
            yield f"{query.where('streams', name)}: stream {name} is not an input of {what}"
        yield from _stream_problems(query, name)
    reads: dict[str, str] = {}
    for name, stream in query.streams.items():
        first = reads.setdefault(query.topic(name), name)
        if first != name:
            at = ("topic",) if stream.topic is not None else ()
            yield (
                f"{query.where('streams', name, *at)}: topic {query.topic(name)} is stream {first} "
                f'already: take another, or read that stream again as "{first} as {name}"'
            )
    yield from wrong
    for name, each in query.joins.items():
        for same in _same([key.name for key in each.keys]):
            where = query.where(*query.place(name, "on"))
            yield f"{where}: two keys of the same name: {same}"
    yield from _optional_problems(query)
    yield from _column_problems(query)
    bands = list(_band_problems(query))
    yield from bands
    if not found and not bands:  # whose spans are known
        yield from _time_problems(query)
    if not found:
        yield from _key_name_problems(query)
        yield from _clashes(query)


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


def _band_problems(query: Query) -> Iterator[str]:
    for name, join in query.joins.items():
        inputs = [leaf_of(each).name for each in join.inputs]
        where = query.where(*query.place(name, "within"))
        for odd in sorted(set(join.within or ()) - set(inputs[1:])):
            what = (
                "the first input, which the others are around" if odd == inputs[0] else "no input"
            )
            yield f"{where}: {odd} is {what}; give a band to: {', '.join(inputs[1:])}"
        for input_ in inputs[1:]:
            if join.within is not None and input_ not in join.within:
                yield f"{where}: {input_} has no band; write {input_} = '-5 seconds .. 5 seconds'"


def _optional_problems(query: Query) -> Iterator[str]:
    """Inputs that results cannot lack."""
    for name, join in query.joins.items():
        if join.optional is None:
            continue
        where = query.where(*query.place(name, "optional"))
        inputs = [leaf_of(each).name for each in join.inputs]
        if len(query.joins) > 1:
            yield (
                f"{where}: a tree of joins has inner joins only. Write it as one join if all keys "
                "are equal, or leave optional out"
            )
        elif join.span is not None:
            yield f"{where}: a join with a window is an inner join: leave one of the two out"
        elif not query.is_single:
            yield f"{where}: a join that reads a stream twice is an inner join: leave optional out"
        for odd in (each for each in join.optional if each not in inputs):
            yield f"{where}: {odd!r} is no input of the join; there are: {_list(inputs)}"
        for same in _same(join.optional):
            yield f"{where}: {same} is there twice; name each input once"


def _time_problems(query: Query) -> Iterator[str]:
    """Streams whose windows have no time to go by, and times that are none."""
    asked = query.timed_streams
    for name, stream in query.streams.items():
        rules = {each.name: each for each in stream.rules}
        fits = [each.name for each in stream.rules if each.type == "timestamp"]
        listed = f"timestamps: {_list(fits)}" if fits else f"give {name} a field of type timestamp"
        if stream.time is None and name in asked:
            which = f'time = "{fits[0]}"' if len(fits) == 1 else f"time = ...; {listed}"
            yield (
                f"{query.where('streams', name)}: {asked[name]} has a window, or a join above it: "
                f"say which field of {name} it goes by, {which}"
            )
        elif stream.time is not None:
            where = query.where("streams", name, "time")
            if stream.time not in rules:
                yield f"{where}: {name} has no field {stream.time!r}; {listed}"
            elif stream.time not in fits:
                type_ = rules[stream.time].type
                yield (
                    f"{where}: {stream.time} is {type_}; a time is a timestamp that is never null; "
                    f"{listed}"
                )
    for what in _PATIENCE:
        said = {
            name: text
            for name, join in query.joins.items()
            if (text := getattr(join, what)) is not None
        }
        if len({duration_us(text) for text in said.values()}) > 1:
            last = list(said)[-1]
            yield (
                f"{query.where(*query.place(last, what))}: {' and '.join(said)} differ: "
                f"all joins of a query have one watermark. Say {what} once"
            )


def _key_name_problems(query: Query) -> Iterator[str]:
    """Keys of two joins may have one name only where the upper one is the lower one."""
    tree = query.tree
    seen: dict[str, set[KeySource]] = {}
    for join in tree.joins:
        for position, key in enumerate(join.keys):
            sources = {tree.source(key, each) for each in join.inputs}
            if seen.get(key.name, sources).isdisjoint(sources):
                where = query.where(*query.place(join.name, "on", position))
                yield (
                    f"{where}: another join has a key {key.name} of other columns; "
                    "results have a column for each: choose another name"
                )
            seen.setdefault(key.name, set()).update(sources)


def _column_problems(query: Query) -> Iterator[str]:
    where = query.where("results", "columns") if query.results.columns else query.where("join")
    for each in query.results.columns or ():
        stream, _, field = each.partition(".")
        names = [r.name for r in query.stream(stream).rules] if stream in query.inputs else []
        if field not in names:
            allowed = [f"{s}.{r.name}" for s in query.inputs for r in query.stream(s).rules]
            named = [full for full in allowed if full.endswith(f".{each}")]
            if each in query.key_names:
                yield f"{where}: {each} is a key, and keys are always in the results: leave it out"
            elif named:
                yield f"{where}: there is no {each!r}; write {' or '.join(named)}"
            else:
                yield f"{where}: there is no {each!r}; there are: {_list(allowed)}"
    listed = query.results.columns or []
    for each in dict.fromkeys(each for each in listed if listed.count(each) > 1):
        yield f"{where}: {each!r} is there twice; name each column once"


def _clashes(query: Query) -> Iterator[str]:
    """Columns of the results that would have one name."""
    found: dict[str, list[tuple[str, str, str]]] = {}

    def add(name: str, what: str, where: str) -> None:
        found.setdefault(name.lower(), []).append((name, what, where))

    for name in sorted(RESULT_COLUMNS):
        add(name, "a column that all results have", "")
    keys: dict[str, str] = {}
    for join in query.tree.joins:
        for position, key in enumerate(join.keys):
            keys.setdefault(key.name, query.where(*query.place(join.name, "on", position)))
    for name, at in keys.items():
        add(name, f"key {name}", at)
    columns = query.where("results", "columns") if query.results.columns else ""
    for stream in query.inputs:
        at = columns or query.where("streams", query.stream_name(stream))
        for each in query.payload(stream):
            add(f"{stream}_{each.name}", f"field {each.name} of {stream}", at)
        for part in ("partition", "offset"):
            add(f"{stream}_{part}", f"the {part} of {stream}", at)
    for same in found.values():
        if len(same) > 1:
            named = ", ".join(dict.fromkeys(name for name, *_ in same))
            whose = ", ".join(what for _, what, _ in same)
            yield (
                f"{same[-1][2]}: two columns of the results would be called {named}: {whose}; "
                "rename a stream or a key, or leave a field out with results.columns"
            )


def _same(names: list[str]) -> list[str]:
    """Groups of names that are the same but for case, as text."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.lower(), []).append(name)
    return [", ".join(dict.fromkeys(group)) for group in groups.values() if len(group) > 1]


_TAGS = frozenset({"name", "table"})


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
        if len(key) > 1 and key[0] == "join" and key[1] in ("join", "joins"):
            key = ("join", *key[2:])  # the tag of the one join or the several
        dotted = ".".join(str(part) for part in key)
        text = item["msg"].removeprefix("Value error, ")
        if (
            item["type"] == "extra_forbidden"
            and key[0] == "join"
            and isinstance(item["input"], dict)
        ):
            mixed = [k for k, v in file.data["join"].items() if not isinstance(v, dict)]
            if not mixed:
                continue
            key = ("join", mixed[0])
            dotted = f"join.{mixed[0]}"
            text = (
                "a plain [join] is the only one; beside joins with a name write it as "
                "[join.NAME], too"
            )
        elif item["type"] == "extra_forbidden":
            allowed = _allowed(key)
            near = difflib.get_close_matches(str(key[-1]), allowed, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            text = f"there is no such key; {hint}allowed: {_list(allowed)}"
        elif item["type"] == "list_type":
            text = f'write a list: {key[-1]} = ["...", "..."]'
        elif item["type"] == "string_type" and key[0] == "join" and "inputs" in key:
            text = "an input is a stream or the name of a join: write that one as [join.NAME]"
        elif item["type"] == "string_type" and key[0] == "join" and key[-1] in _LENGTHS:
            text = f'write a length of time: {key[-1]} = "10 minutes"'
        elif item["type"] == "missing":
            text = "missing"
        elif item["type"] == "too_short":
            least = item["ctx"]["min_length"]
            text = "at least one is needed" if least == 1 else f"at least {least} are needed"
        lines.append(f"{file.where(key)}: {dotted}: {text[:1].lower()}{text[1:]}")
    return lines


def _allowed(key: Key) -> list[str]:
    part: type[QueryPart] = Query
    if key[0] == "streams" and len(key) > 2:
        part = StreamInput
    elif key[0] == "join" and len(key) > 1:
        part = JoinKey if "on" in key else Join
    elif key[0] == "results" and len(key) > 1:
        part = Results
    return [info.alias or name for name, info in part.model_fields.items()]


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) if isinstance(names, set | frozenset) else ", ".join(names)
