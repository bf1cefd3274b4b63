"""What is different between two queries, in words. Pure.

Model: a query says facts of *parts*: of each stream as a join reads it, of each join, of time. Two
queries mean the same (`Query.fingerprint`) exactly when all their facts are equal. A part that only
one of them has is one change, whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spillway_schemas.durations import duration_text
from spillway_schemas.expressions import normalised, plain_column
from spillway_schemas.formats import JSON, ValueFormat
from spillway_schemas.join_tree import KeySource
from spillway_schemas.messages import INT64_MAX, INT64_MIN, FieldRule
from spillway_schemas.query import SINGLE, Query
from spillway_schemas.windows import Span

Value = str | tuple[str, ...]
"""What is said; several where only their order is."""
Facts = Mapping[str, Mapping[str, Value]]
"""By part and fact. The fact named `""` sums the part up."""


class Change(NamedTuple):
    """One difference."""

    what: str
    old: str | None
    """None: it is new."""
    new: str | None
    """None: it goes."""

    @property
    def text(self) -> str:
        """`trade: filter: price > 0 -> price > 1`."""
        if self.old is None:
            return f"{self.what}: new: {self.new}"
        if self.new is None:
            return f"{self.what}: goes: {self.old}"
        return f"{self.what}: {self.old} -> {self.new}"


def changes(old: Query, new: Query) -> list[Change]:
    """The differences, in the order of the old query's parts; none where both mean the same."""
    before, after = facts(old), facts(new)
    found: list[Change] = []
    for part in dict.fromkeys((*before, *after)):
        if part in before and part in after:
            found += _of_part(part, before[part], after[part])
        else:
            sums = (side[part][""] if part in side else None for side in (before, after))
            found.append(Change(part, *(None if each is None else _shown(each) for each in sums)))
    if not found and old.fingerprint != new.fingerprint:  # however that may be
        found.append(Change("fingerprint", old.fingerprint, new.fingerprint))
    return found


def _of_part(part: str, old: Mapping[str, Value], new: Mapping[str, Value]) -> Iterator[Change]:
    for fact in dict.fromkeys((*old, *new)):
        before, after = old.get(fact), new.get(fact)
        if before == after:
            continue
        both = isinstance(before, tuple) and isinstance(after, tuple)
        if both and sorted(before or ()) != sorted(after or ()):
            continue  # what has come or gone is a change of its own
        what = f"{part}: {fact}" if fact else part
        yield Change(what, *(None if each is None else _shown(each) for each in (before, after)))


def facts(query: Query) -> Facts:
    """All that a query says."""
    found: dict[str, Mapping[str, Value]] = {}
    for leaf in query.inputs:
        found[f"stream {leaf}"] = _of_stream(query, leaf)
    tree = query.tree
    for join, span in zip(tree.joins, query.spans, strict=True):
        name = SINGLE if len(tree.joins) == 1 else f"join {join.name}"
        sources = {
            f"key {key.name}": " = ".join(_source(tree.source(key, each)) for each in join.inputs)
            for key in join.keys
        }
        found[name] = {
            "": f"of {', '.join(join.inputs)}",
            **sources,
            "order of its keys": tuple(key.name for key in join.keys),
            **({} if span is None else {"window": _window(span)}),
            **({"optional": ", ".join(query.optional)} if query.optional else {}),
        }
    if (times := query.event_time) is not None:
        found["time"] = {
            "": "windows",
            "lateness": duration_text(times.lateness_us),
            "ahead": duration_text(times.ahead_us),
            **(
                {}
                if times.idle_after_ms is None
                else {"idle_after": duration_text(1000 * times.idle_after_ms)}
            ),
        }
    found["order"] = {
        "of the streams": query.inputs,
        "of the joins": tuple(join.name for join in tree.joins) if len(tree.joins) > 1 else (),
    }
    return found


def _of_stream(query: Query, leaf: str) -> Mapping[str, Value]:
    stream = query.stream(leaf)
    payload = query.payload(leaf)
    found: dict[str, Value] = {"": f"topic {query.topic(leaf)}"}
    found |= {f"field {rule.name}": _type(rule) for rule in stream.rules}
    found["order of its fields"] = tuple(rule.name for rule in stream.rules)
    if (written := _format(stream.value_format)) is not None:
        found["format"] = written
    if stream.filter is not None:
        found["filter"] = normalised(stream.filter)
    if query.is_windowed and (time := query.time(leaf)) is not None:
        found["time"] = time
    found |= {f"column {leaf}_{rule.name} of the results": "carried" for rule in payload}
    return found


def _format(written: ValueFormat) -> tuple[str, ...] | None:
    """How values are written; None: JSON. Files by what they say, as the fingerprint has them."""
    if written.name == JSON:
        return None
    files = {"writer": written.writer, "reader": written.reader}
    return (
        written.name,
        *(f"{name} {each.digest[:12]}" for name, each in files.items() if each is not None),
        *([] if written.message is None else [f"message {written.message}"]),
        *(f"{name} = {value}" for name, value in written.options),
    )


def _source(source: KeySource) -> str:
    text = normalised(source.expression)
    if plain_column(text) == text:
        return f"{source.leaf}.{text}"
    return f"{text} of {source.leaf}"


def _type(rule: FieldRule) -> str:
    if (rule.ge, rule.le) in ((None, None), (INT64_MIN, INT64_MAX)):
        return rule.type
    return f"{rule.type}, {rule.ge} to {rule.le}"


def _window(span: Span) -> str:
    if span.bands_us is None:
        return duration_text(span.width_us)
    return "; ".join(" .. ".join(map(duration_text, band)) for band in span.bands_us[1:])


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else ", ".join(value)
