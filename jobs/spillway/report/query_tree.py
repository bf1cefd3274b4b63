"""A query's tree for people: as text, as a picture, as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from rich.tree import Tree

from spillway.report.svg import Safe, joined, tag
from spillway_schemas.edges import Edge, QueryEdges
from spillway_schemas.expressions import plain_column
from spillway_schemas.join_tree import KeySource, TreeJoin
from spillway_schemas.query import Query

WIDE, LINE, GAP, INDENT = 760, 18, 14, 28
"""Pixels of the picture: its width, a line, between two boxes, a level."""
CHARACTER = 7.4
"""Pixels of a character, about."""


def as_text(query: Query) -> Tree:
    """The tree, root first, for a terminal: each input with what its rows carry, and why."""
    edges = {(edge.join, edge.input): edge for edge in QueryEdges(query).edges}

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
    grow(root, query.tree.root)
    return root


def _title(query: Query, name: str) -> str:
    if (join := query.tree.join(name)) is not None:
        return f"{name} joins {', '.join(join.inputs)}"
    topic = query.topic(name)
    text = name if topic == name else f"{name} (topic {topic})"
    kept = query.stream(name).filter
    return text if kept is None else f"{text} where {kept}"


def _keys(query: Query, join: TreeJoin | None) -> list[str]:
    """A line for each key: what is equal. None for a stream."""
    if join is None:
        return []
    equal = {
        key.name: dict.fromkeys(said(query.tree.source(key, each)) for each in join.inputs)
        for key in join.keys
    }
    return [f"on {name}: {' = '.join(sources)}" for name, sources in equal.items()]


def said(source: KeySource) -> str:
    """`c.y`, or an expression and its leaf."""
    if plain_column(source.expression) is not None:
        return f"{source.leaf}.{source.expression}"
    return f"{source.expression} of {source.leaf}"


def carried(edge: Edge) -> list[str]:
    """A line for each column of an edge, then one each for coordinates and lineage."""
    lines = [f"{said(source)}  ({'; '.join(why)})" for source, why in edge.columns.items()]
    lines.append(f"coordinates of {', '.join(edge.coordinates)}  (identity)")
    if edge.lineage:
        lines.append(f"key hashes of {', '.join(edge.lineage)}  (lineage)")
    return lines


def as_dict(query: Query) -> dict[str, Any]:
    """The tree for programs."""
    tree = query.tree
    return {
        "query": query.name,
        "fingerprint": query.fingerprint,
        "runs": query.is_single,
        "joins": [
            {
                "name": join.name,
                "level": tree.level(join.name),
                "inputs": list(join.inputs),
                "keys": {
                    key.name: {each: said(tree.source(key, each)) for each in join.inputs}
                    for key in join.keys
                },
            }
            for join in tree.joins
        ],
        "streams": {leaf.name: query.topic(leaf.name) for leaf in tree.leaves},
        "edges": [
            {
                "from": edge.input,
                "to": edge.join,
                "columns": {said(source): list(why) for source, why in edge.columns.items()},
                "coordinates": list(edge.coordinates),
                "lineage": list(edge.lineage),
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
    edges = {(edge.join, edge.input): edge for edge in QueryEdges(query).edges}
    drawn: list[Safe] = []
    y, widest = GAP, 0.0

    def box(name: str, reader: str | None, depth: int, from_y: float | None) -> None:
        nonlocal y, widest
        join = query.tree.join(name)
        keys = _keys(query, join)
        lines = [_title(query, name), *keys]
        lines += carried(edges[reader, name]) if reader else []
        x, top = GAP + INDENT * depth, y
        height = LINE * len(lines) + 10
        width = max(len(line) for line in lines) * CHARACTER + 20
        widest = max(widest, x + width)
        if from_y is not None:
            path = f"M{x - INDENT / 2},{from_y}V{top + LINE}H{x}"
            drawn.append(tag("path", class_="edge", d=path))
        drawn.append(tag("rect", class_="box", x=x, y=top, width=width, height=height, rx=4))
        for n, line in enumerate(lines):
            kind = "name" if n == 0 else "key" if n <= len(keys) else "why"
            drawn.append(tag("text", line, class_=kind, x=x + 10, y=top + LINE * (n + 1)))
        y += height + GAP
        for each in join.inputs if join is not None else ():
            box(each, name, depth + 1, top + height)

    box(query.tree.root.name, None, 0, None)
    return tag(
        "svg",
        tag("title", f"The joins of {query.name}"),
        tag("style", Safe(STYLE)),
        joined(drawn),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {max(widest + GAP, WIDE):g} {y:g}",
        role="img",
    )
