"""A query's tree for people: as text, as a picture, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.text import Text
from rich.tree import Tree

from spillway.report.model import JoinStatus
from spillway.report.svg import Safe, joined, tag
from spillway.report.words import bytes_text, count_text, times_text
from spillway_schemas.durations import duration_text, duration_us
from spillway_schemas.edges import Edge, QueryEdges
from spillway_schemas.expressions import plain_column
from spillway_schemas.formats import JSON
from spillway_schemas.join_tree import KeySource, TreeJoin
from spillway_schemas.query import Query
from spillway_schemas.windows import band_us

WIDE, LINE, GAP, INDENT = 760, 18, 14, 28
"""Pixels of the picture: its width, a line, between two boxes, a level."""
CHARACTER = 7.4
"""Pixels of a character, about."""
MOST_SLOTS = 6
"""Slots of a join that are told in words."""
SMALL = 7.1
"""The same in a report."""


def _edges(query: Query) -> dict[tuple[str, str], Edge]:
    """Each edge by the join that reads it and the input that it comes from."""
    return {(edge.join, edge.input): edge for edge in QueryEdges(query).edges}


def as_text(query: Query) -> Tree:
    """The tree, root first, for a terminal: each input with what its rows carry, and why."""
    edges = _edges(query)

    def grow(branch: Tree, join: TreeJoin) -> None:
        for line in _keys(query, join):
            branch.add(Text(line))
        for input_ in join.inputs:
            below = query.tree.join(input_)
            twig = branch.add(Text(_title(query, input_), style="bold" if below else ""))
            for line in carried(edges[join.name, input_]):
                twig.add(Text(line, style="dim"))
            if below is not None:
                grow(twig, below)

    root = Tree(Text(_title(query, query.tree.root.name), style="bold"))
    for line in _time(query):
        root.add(Text(line))
    grow(root, query.tree.root)
    return root


def _time(query: Query) -> list[str]:
    """What holds for the time of all joins; nothing where there is no window."""
    if (rules := query.event_time) is None:
        return []
    idle = ""
    if rules.idle_after_ms is not None:
        idle = f"; without one for {duration_text(rules.idle_after_ms * 1000)} it is not waited for"
    return [
        f"late: more than {duration_text(rules.lateness_us)} before the newest row of the slowest "
        f"partition{idle}",
        f"ahead: more than {duration_text(rules.ahead_us)} after Kafka's own time",
    ]


def _title(query: Query, name: str) -> str:
    if (join := query.tree.join(name)) is not None:
        return f"{name} joins {', '.join(join.inputs)}"
    topic, kind = query.topic(name), query.stream(name).format
    more = [f"topic {topic}"] if topic != name else []
    more += [kind] if kind != JSON else []
    text = f"{name} ({', '.join(more)})" if more else name
    kept = query.stream(name).filter
    text = text if kept is None else f"{text} where {kept}"
    return f"{text}, optional" if name in query.optional else text


def _keys(query: Query, join: TreeJoin | None) -> list[str]:
    """A line for each key: what is equal. None for a stream."""
    if join is None:
        return []
    equal = {
        key.name: dict.fromkeys(said(query.tree.source(key, each)) for each in join.inputs)
        for key in join.keys
    }
    lines = [f"on {name}: {' = '.join(sources)}" for name, sources in equal.items()]
    return lines + _window(query, join)


def _window(query: Query, join: TreeJoin) -> list[str]:
    """A line for each condition on times; none for a join without a window."""
    found = query.joins[join.name]
    if found.window is not None:
        return [f"all within {duration_text(duration_us(found.window))}"]
    if found.within is None:
        return []
    first = join.inputs[0]
    return [
        f"{name}: {' to '.join(map(duration_text, band_us(text)))} after {first}"
        for name, text in found.within.items()
    ]


def said(source: KeySource) -> str:
    """`c.y`, or an expression and its leaf."""
    if plain_column(source.expression) is not None:
        return f"{source.leaf}.{source.expression}"
    return f"{source.expression} of {source.leaf}"


def carried(edge: Edge) -> list[str]:
    """A line for each column of an edge, then one each for coordinates, times and lineage."""
    lines = [f"{said(source)}  ({'; '.join(why)})" for source, why in edge.columns.items()]
    lines.append(f"coordinates of {', '.join(edge.coordinates)}  (identity)")
    if edge.timed:
        lines.append(f"{'least and greatest time' if edge.lineage else 'time'}  (window)")
    if edge.lineage:
        lines.append(f"key hashes of {', '.join(edge.lineage)}  (lineage)")
    return lines


def as_dict(query: Query) -> dict[str, Any]:
    """The tree for programs."""
    tree, event_time = query.tree, query.event_time
    return {
        "query": query.name,
        "fingerprint": query.fingerprint,
        "event_time": None if event_time is None else event_time.model_dump(),
        "joins": [
            {
                "name": join.name,
                "level": tree.level(join.name),
                "inputs": list(join.inputs),
                "optional": [each for each in join.inputs if each in query.optional],
                "keys": {
                    key.name: {each: said(tree.source(key, each)) for each in join.inputs}
                    for key in join.keys
                },
                "window_us": None if span is None or span.bands_us is not None else span.width_us,
                "within_us": None
                if span is None or span.bands_us is None
                else dict(zip(join.inputs[1:], map(list, span.bands_us[1:]), strict=True)),
            }
            for join, span in zip(tree.joins, query.spans, strict=True)
        ],
        "streams": {leaf.name: query.topic(leaf.name) for leaf in tree.leaves},
        "edges": [
            {
                "from": edge.input,
                "to": edge.join,
                "columns": {said(source): list(why) for source, why in edge.columns.items()},
                "coordinates": list(edge.coordinates),
                "lineage": list(edge.lineage),
                "timed": edge.timed,
            }
            for edge in QueryEdges(query).edges
        ],
    }


STYLE = """
text { font: 12px ui-monospace, monospace; fill: #1b1f24 }
.name { font-weight: bold }
.why { fill: #57606a }
.box { fill: #f6f8fa; stroke: #8c959f }
.edge { stroke: #8c959f; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .why { fill: #9198a1 } .box { fill: #151b23; stroke: #656c76 }
  .edge { stroke: #656c76 }
}
"""


def as_svg(query: Query) -> str:
    """The tree as a picture: a box for each join and stream, its inputs indented below it."""
    edges = _edges(query)

    def box(name: str, reader: str | None) -> Box:
        join = query.tree.join(name)
        keys = _keys(query, join)
        why = carried(edges[reader, name]) if reader else []
        below = [box(each, name) for each in (join.inputs if join is not None else ())]
        return Box(_title(query, name), keys, why, below)

    drawn, width, height = _drawn(box(query.tree.root.name, None), CHARACTER)
    return tag(
        "svg",
        tag("title", f"The joins of {query.name}"),
        tag("style", Safe(STYLE)),
        drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {max(width, WIDE):g} {height:g}",
        role="img",
    )


def joins_svg(joins: Sequence[JoinStatus]) -> Safe:
    """The tree with what each join holds and has given, in the look of the page that it is in."""
    named = {each.join: each for each in joins}

    def box(name: str) -> Box:
        if (join := named.get(name)) is None:
            return Box(name, [], [], [])
        inputs = ", ".join(join.inputs)
        return Box(f"{name} joins {inputs}", [], figures(join), [box(each) for each in join.inputs])

    drawn, width, height = _drawn(box(joins[-1].join), SMALL)
    label = "; ".join(f"{each.join}: {', '.join(figures(each))}" for each in joins)
    # As large as it is drawn: a small tree must not be blown up.
    return tag(
        "svg",
        drawn,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def figures(join: JoinStatus) -> list[str]:
    """What a join holds, and what it has given and spilled: a line each."""
    return [
        f"{count_text(join.rows)} rows, {bytes_text(join.bytes)}",
        f"{count_text(join.results)} results, {join.productivity:,.2f} a KiB",
        f"{times_text(join.cuts, 'generation')}, {bytes_text(join.spilled_bytes)} spilled",
    ]


def where_text(join: JoinStatus) -> str:
    """`0: 1.2 MiB in 32 groups, 1: 40 KiB in 8 groups`; of many slots those that hold most."""
    most = sorted(join.slot_bytes, key=lambda slot: -join.slot_bytes[slot])[:MOST_SLOTS]
    told = ", ".join(
        f"{slot}: {bytes_text(join.slot_bytes[slot])} in {times_text(join.groups[slot], 'group')}"
        for slot in sorted(most)
    )
    left = len(join.slot_bytes) - len(most)
    return f"{told} and {left} more" if left else told


def root_first(joins: Sequence[JoinStatus]) -> list[tuple[int, JoinStatus]]:
    """The joins from the root on, each with its depth below the root; inputs in their order."""
    named = {each.join: each for each in joins}

    def below(join: JoinStatus, depth: int) -> Iterator[tuple[int, JoinStatus]]:
        yield depth, join
        for name in join.inputs:
            if name in named:
                yield from below(named[name], depth + 1)

    return list(below(joins[-1], 0)) if joins else []


class Box(NamedTuple):
    """A join or stream of a picture, and what lies below it."""

    title: str
    keys: list[str]
    why: list[str]
    below: list[Box]


def _drawn(root: Box, character: float) -> tuple[Safe, float, float]:
    """A box for each, its inputs indented below it; the picture's width and height."""
    drawn: list[Safe] = []
    y, widest = GAP, 0.0

    def draw(box: Box, depth: int, from_y: float | None) -> None:
        nonlocal y, widest
        lines = [box.title, *box.keys, *box.why]
        x, top = GAP + INDENT * depth, y
        height = LINE * len(lines) + 10
        width = max(len(line) for line in lines) * character + 20
        widest = max(widest, x + width)
        if from_y is not None:
            path = f"M{x - INDENT / 2},{from_y}V{top + LINE}H{x}"
            drawn.append(tag("path", class_="edge", d=path))
        drawn.append(tag("rect", class_="box", x=x, y=top, width=width, height=height, rx=4))
        for n, line in enumerate(lines):
            kind = "name" if n == 0 else "key" if n <= len(box.keys) else "why"
            drawn.append(tag("text", line, class_=kind, x=x + 10, y=top + LINE * (n + 1)))
        y += height + GAP
        for each in box.below:
            draw(each, depth + 1, top + height)

    draw(root, 0, None)
    return joined(drawn), widest + GAP, y
