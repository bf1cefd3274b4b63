"""A query of two joins, for tests of the engine: `ab` joins `a` and `b`, `abd` that and `d`.

Inputs are numbered through: 0 and 1 are `a` and `b`, 2 is what `ab` gives, 3 is `d`.
"""

from __future__ import annotations

from pathlib import Path

from spillway.decode import tree_spec
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml

TEXT = """
[streams.a]
fields = { k = "int", v = "string" }
[streams.b]
fields = { k = "int", c = "int" }
[streams.d]
fields = { c = "int", w = "string" }
[join.ab]
inputs = ["a", "b"]
on = ["k"]
[join.abd]
inputs = ["ab", "d"]
on = ["c"]
"""
TWO_JOINS = tree_spec(query_of(parse_toml(TEXT, Path("q.toml"))))
