"""Decode: values of a topic to rows of the join, the contract's verdict on every value.

Three stages, each handing on what it does not accept:

1. values that look alike, together (`templates`), rules checked on whole columns (`rules`,
   `timestamps`): about a million rows/s on one core;
2. values that look like no others, one by one through pydantic's JSON parser, the same rules on
   whole columns (`parse.parse_each`);
3. what is left, and every row that breaks a rule, through the pydantic model
   (`spillway_schemas.messages.read`). It is the contract: it gives the row or the reason.

A row that stage 1 or 2 accepts is the row that stage 3 would give, and each stage looks at one
value's bytes only: no values are joined, and none is refused before stage 3. So what becomes of a
value follows from its bytes and the contract, whatever shares its batch. Property tests hold the
stages together. No value is dropped: each is kept, rejected with a reason, or filtered by the
query.

One call takes at most 8 times the bytes of its values and 64 MiB, whatever the values hold, if it
has no more than `MOST_ROWS` of them: pieces are small, and what is skipped builds no objects.

Values that are not JSON have two stages like these (`spillway.decode.formats`), and the same model
in the end.

Then, where the query asks for it, the filter and derived keys are evaluated on the rows
(`expressions`); a null join key is a reason to reject, and so is a day or time that no field may
have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spillway.decode.digest import partition_digest, value_digest
from spillway.decode.expressions import evaluate, is_true
from spillway.decode.formats.decoder import ValueDecoder
from spillway.decode.formats.framing import values_by_schema
from spillway.decode.layout import Layout
from spillway.decode.parse import Parsed, can_parse, parse_alike, parse_each, pieces
from spillway.decode.plan import (
    CompiledQuery,
    StreamPlan,
    compile_query,
    compile_streams,
    tree_spec,
)
from spillway.decode.rules import check, columns_of, row_schema
from spillway_schemas.formats import JSON
from spillway_schemas.messages import (
    OUTSIDE_YEARS,
    YEARS_US,
    FieldRule,
    Message,
    Rejected,
    accept,
    read,
)

__all__ = [
    "CompiledQuery",
    "Decoded",
    "StreamPlan",
    "compile_query",
    "compile_streams",
    "decode",
    "partition_digest",
    "tree_spec",
    "value_digest",
]

FEW_ROWS = 64
"""Batches up to this size go straight to the contract: a call of the column path costs as much as
the contract takes for 80 messages, whatever it reads."""

CHUNK_ROWS, CHUNK_BYTES = 4_096, 1 << 20
"""Values that are objects of Python at the same time."""

EACH_BYTES = 16 << 10
"""Larger values skip the second stage, which makes objects of all that they hold: the contract
makes them of its own fields only, and its price a value no longer matters."""

MOST_ROWS = 65_536
"""Values of one call, at most, if its memory is to be bounded by their bytes: a row has columns
however small its value is."""

BLOCK_ROWS, BLOCK_BYTES = 32_768, 4 << 20
"""Values that go through all stages before the next ones: bounds what is between the stages."""

LATEST_MS = 2**62
"""Later than any message."""

Rows = npt.NDArray[np.int64]
Part = tuple[Rows, list[Any]]
"""Positions, and the columns of the rows there."""


@dataclass(frozen=True)
class RowTimes:
    """When rows happened, in us since 1970, int64."""

    kept_us: Rows
    """Of the rows that are kept."""
    heard: Rows
    """Positions, ascending, of all values that keep the contract, and ..."""
    heard_us: Rows
    """... their times: what the watermark follows, whatever filter and keys say."""


@dataclass(frozen=True)
class Decoded:
    """What became of a batch of n values; kept, rejected and filtered add up to n."""

    rows: Any
    """pa.RecordBatch: keys' columns, then payload's."""
    kept: Rows
    """Positions (int64, ascending) in the given values of the rows."""
    rejected: Rows
    """Positions (int64, ascending) of values that broke the contract."""
    reasons: list[str]
    """One short line for each of `rejected`."""
    filtered: int
    """Rows that hold but that the query's filter leaves out."""
    times: RowTimes | None = None
    """None: no window asks for them."""
    happened: tuple[Rows, Rows] | None = None
    """Positions, ascending, of all values that keep the contract, and when they happened, us since
    1970, int64; None: the query does not say by which field."""


def decode(
    plan: StreamPlan, values: Any, kafka_ms: Rows | None = None, *, few_rows: int = FEW_ROWS
) -> Decoded:
    """Decode one stream's values, a pyarrow binary or large_binary array; nulls are rejected.

    `kafka_ms`: Kafka's time of each value, since 1970, int64 (n,): it decides whether the id of a
    schema was known; None: all are new. `few_rows` is for tests: batches up to this size take the
    contract for every value. Raises what `plan.writers` raises.
    """
    reasons: dict[int, str] = {}
    if plan.format.name == JSON:
        rows, table = _read(plan, values, few_rows, reasons)
    else:
        rows, table = _read_by_schema(plan, values, kafka_ms, few_rows, reasons)
    heard, happened, times = rows, None, None
    if plan.day_time is not None:
        happened = rows, _micros(table.column(plan.day_time))
        times = happened[1] if plan.time is not None else None
    filtered = 0
    if plan.filter is not None:
        verdict, failed = evaluate(plan.filter, table.select(plan.reads), pa.bool_())
        _note(reasons, rows, failed, "filter")
        keep = is_true(verdict)
        filtered = len(rows) - int(np.count_nonzero(keep)) - len(failed)
        rows, table = rows[keep], table.filter(pa.array(keep))
    columns, keep = [], np.ones(len(rows), np.bool_)
    for field, source, plain in zip(plan.schema, plan.sources, plan.plain, strict=True):
        if plain:
            key, failed = _whole(table.column(source)), {}
        else:
            key, failed = evaluate(source, table.select(plan.reads), field.type)
        columns.append(key)
        if not field.nullable:
            _note(reasons, rows, failed, field.name)
            keep &= _may_be_key(reasons, rows, field.name, key, plain=plain)
    for source, kind in plan.also:
        key, failed = evaluate(source, table.select(plan.reads), kind)
        _note(reasons, rows, failed, source)
        keep &= _may_be_key(reasons, rows, source, key, plain=False)
    batch = pa.RecordBatch.from_arrays(columns, schema=plan.schema)
    if not keep.all():
        rows, batch = rows[keep], batch.filter(pa.array(keep))
    rejected = np.array(sorted(reasons), np.int64)
    why = [reasons[at] for at in rejected.tolist()]
    found = Decoded(batch, rows, rejected, why, filtered, happened=happened)
    if times is None:
        return found
    kept = times if len(rows) == len(heard) else times[np.searchsorted(heard, rows)]
    return replace(found, times=RowTimes(kept, heard, times))


def _may_be_key(
    reasons: dict[int, str], rows: Rows, name: str, key: Any, *, plain: bool
) -> npt.NDArray[np.bool_]:
    """Which rows have a key, bool (n,); why the others have none is noted."""
    good = np.ones(len(rows), np.bool_)
    if key.null_count:
        null = key.is_null().to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(null):
            reasons.setdefault(int(rows[at]), f"{name}: the join key is null")
        good &= ~null
    if not plain and (outside := _outside_years(key)) is not None:
        for at in np.flatnonzero(outside):
            reasons.setdefault(int(rows[at]), f"{name}: {OUTSIDE_YEARS}")
        good &= ~outside
    return good


def _read(
    plan: StreamPlan, values: Any, few_rows: int, reasons: dict[int, str]
) -> tuple[Rows, Any]:
    """Every value through the three stages: positions and table of what holds."""
    found: list[Part] = []
    columnar = can_parse(plan.rules) and len(values) > few_rows
    for begin, end in pieces(values, BLOCK_ROWS, BLOCK_BYTES):
        block = values.slice(begin, end - begin)
        left = np.arange(end - begin)
        parts: list[Part] = []
        if columnar:
            parts, left = _by_columns(plan.rules, block)
        for some in _chunks(block, left):
            part, why = _by_contract(plan, block, some)
            parts.append(part)
            reasons.update((begin + at, reason) for at, reason in why)
        found += [(rows + begin, columns) for rows, columns in parts]
    return _together(plan, found)


def _read_by_schema(
    plan: StreamPlan,
    values: Any,
    kafka_ms: Rows | None,
    few_rows: int,
    reasons: dict[int, str],
) -> tuple[Rows, Any]:
    """The same for values of another format: their schemas' decoders, then the contract."""
    found: list[Part] = []
    if kafka_ms is None:
        kafka_ms = np.full(len(values), LATEST_MS)
    for begin, end in pieces(values, BLOCK_ROWS, BLOCK_BYTES):
        block = values.slice(begin, end - begin)
        why: dict[int, str] = {}
        for share in values_by_schema(
            plan.format, plan.rules, block, kafka_ms[begin:end], plan.writers, why
        ):
            parts: list[Part] = []
            left = np.arange(len(share.rows))
            if len(left) > few_rows:
                alike, left = share.decoder.columns(share.bodies)
                broken = [
                    _accept(plan.rules, Parsed(each.rows, each.columns), parts) for each in alike
                ]
                left = np.sort(np.concatenate([left, *broken]))
            for some in _chunks(share.bodies, left):
                part, told = _by_decoder(plan, share.decoder, share.bodies, some)
                parts.append(part)
                why.update((int(share.rows[at]), reason) for at, reason in told)
            found += [(share.rows[rows] + begin, columns) for rows, columns in parts]
        reasons.update((begin + at, reason) for at, reason in why.items())
    return _together(plan, found)


def _by_decoder(
    plan: StreamPlan, decoder: ValueDecoder, bodies: Any, rows: Rows
) -> tuple[Part, list[tuple[int, str]]]:
    """`_by_contract` of another format."""

    def judge(at: int) -> Message:
        return accept(plan.contract, decoder.fields(bodies[at].as_py()))

    return _judged(plan, rows, judge)


def _by_columns(rules: Sequence[FieldRule], values: Any) -> tuple[list[Part], Rows]:
    """The first two stages: what they accept, and the positions left over."""
    parts: list[Part] = []
    alike, left = parse_alike(rules, values)
    broken: list[Rows] = []
    if alike:
        rows = np.concatenate([parsed.rows for parsed in alike])
        whole = Parsed(rows, pa.concat_tables([parsed.columns for parsed in alike]))
        broken.append(_accept(rules, whole, parts))
    if len(left):
        layout = Layout.of(values)
        large = (layout.ends - layout.starts)[left] > EACH_BYTES
        broken.append(left[large])
        for some in _chunks(values, left[~large]):
            each, rest = parse_each(rules, values, some)
            broken.append(rest)
            if each is not None:
                broken.append(_accept(rules, each, parts))
    return parts, np.sort(np.concatenate(broken)) if broken else left


def _chunks(values: Any, rows: Rows) -> Iterator[Rows]:
    """Rows that are read one by one, a few at a time: the garbage collector looks at every
    object that is alive, and took half of the time when all of a batch was. And so few bytes that
    it does not matter what becomes of them: `{},` takes 72 bytes as an object."""
    layout = Layout.of(values)
    before = np.cumsum((layout.ends - layout.starts)[rows])
    begin = 0
    while begin < len(rows):
        size = int(before[begin - 1]) if begin else 0
        fit = int(np.searchsorted(before, size + CHUNK_BYTES, side="right"))
        end = min(len(rows), begin + CHUNK_ROWS, max(begin + 1, fit))
        yield rows[begin:end]
        begin = end


def _accept(rules: Sequence[FieldRule], parsed: Parsed, parts: list[Part]) -> Rows:
    """Add the rows that keep every rule to `parts`; the positions of the others."""
    columns, good = check(rules, parsed.columns)
    if good.all():
        parts.append((parsed.rows, columns))
        return np.zeros(0, np.int64)
    mask = pa.array(good)
    parts.append((parsed.rows[good], [column.filter(mask) for column in columns]))
    return parsed.rows[~good]


def _by_contract(plan: StreamPlan, values: Any, rows: Rows) -> tuple[Part, list[tuple[int, str]]]:
    """The third stage: what the contract accepts, and why it does not accept the others."""
    return _judged(plan, rows, lambda at: read(plan.contract, values[at].as_py()))


def _judged(
    plan: StreamPlan, rows: Rows, judge: Callable[[int], Message]
) -> tuple[Part, list[tuple[int, str]]]:
    held, messages, reasons = [], [], []
    for at in rows.tolist():
        try:
            messages.append(judge(at))
            held.append(at)
        except Rejected as error:
            # Most of many bad values have the same reason: it is kept once.
            reasons.append((at, sys.intern(str(error))))
    return (np.array(held, np.int64), columns_of(plan.rules, messages)), reasons


def _together(plan: StreamPlan, found: list[Part]) -> tuple[Rows, Any]:
    """The parts as one table in the order of the values."""
    schema = row_schema(plan.rules)
    parts = [part for part in found if len(part[0])] or found[:1]
    if not parts:
        return np.zeros(0, np.int64), schema.empty_table()
    table = pa.concat_tables(pa.Table.from_arrays(columns, schema=schema) for _, columns in parts)
    rows = np.concatenate([rows for rows, _ in parts])
    if (np.diff(rows) < 0).any():
        order = np.argsort(rows, kind="stable")
        rows, table = rows[order], table.take(pa.array(order))
    return rows, table


def _micros(column: Any) -> Rows:
    """Times of a column without nulls, in us since 1970, int64 (n,)."""
    found: Rows = _whole(column).cast(pa.int64()).to_numpy()
    return found


def _whole(column: Any) -> Any:
    """A column of a table as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _outside_years(key: Any) -> npt.NDArray[np.bool_] | None:
    """Where days or times lie outside the years of a `timestamp` field; None: nowhere. What reads
    tables and figures knows no others."""
    if pa.types.is_timestamp(key.type) and key.type.unit != "ns":  # those end in 2262
        unit, numbers = key.type.unit, key.cast(pa.int64())
    elif pa.types.is_date32(key.type):
        unit, numbers = "D", key.cast(pa.int32()).cast(pa.int64())
    else:
        return None
    first, last = (
        np.datetime64(micros, "us").astype(f"datetime64[{unit}]").astype(np.int64)
        for micros in YEARS_US
    )
    found = numbers.fill_null(0).to_numpy()
    outside: npt.NDArray[np.bool_] = (found < first) | (found > last)
    return outside if outside.any() else None


def _note(reasons: dict[int, str], rows: Rows, failed: dict[int, str], what: str) -> None:
    for at, reason in failed.items():
        reasons.setdefault(int(rows[at]), f"{what}: {reason}")
