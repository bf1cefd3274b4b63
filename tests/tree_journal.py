"""A made-up day of a tree of joins, for tests of what people look at: see `tests.report_journal`.

whole ── paired ── traded ── stock, volume
   │        └───── judged ── review, stock as before
   └── volume as after
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spillway_schemas.hash_space import ROOT
from spillway_schemas.query import load_query
from tests.page_warehouse import page_day
from tests.report_journal import Made, make_day

TREE = """
[streams.stock]
fields = { symbol = "string", price = "double" }
[streams.volume]
fields = { symbol = "string", shares = "int" }
[streams.review]
fields = { symbol = "string", stars = "int" }
[join.traded]
inputs = ["stock", "volume"]
on = ["symbol"]
[join.judged]
inputs = ["review", "stock as before"]
on = [{ name = "judged_symbol", columns = { review = "symbol", before = "symbol" } }]
[join.paired]
inputs = ["traded", "judged"]
on = [{ name = "pair", columns = { traded = "stock.symbol", judged = "review.symbol" } }]
[join.whole]
inputs = ["paired", "volume as after"]
on = [{ name = "last", columns = { paired = "stock.symbol", after = "symbol" } }]
"""
JOINS = ("traded", "judged", "paired", "whole")
PARENTS = (2, 2, 3, ROOT)


def query_file(folder: Path) -> Path:
    """The query, for `settings.query`."""
    path = folder / "tree.toml"
    path.write_text(TREE)
    return path


def tree_day(folder: Path, epochs: int = 40, **more: Any) -> Made:
    """As `make_day` makes one, of the query in `folder`."""
    return make_day(epochs, **_of_tree(folder), **more)


def tree_page_day(folder: Path, epochs: int = 60, **more: Any) -> Made:
    """As `page_day` makes one."""
    return page_day(epochs, **{"depth": 6, **_of_tree(folder), **more})


def _of_tree(folder: Path) -> dict[str, Any]:
    fingerprint = load_query(str(query_file(folder))).fingerprint
    return {"joins": JOINS, "parents": PARENTS, "query": fingerprint}
