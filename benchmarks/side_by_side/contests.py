"""What is measured side by side: a query with its rows, for spillway and for plain Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from spillway_schemas.scenario import Scenario, load_scenario

Fields = dict[str, str]
"""Names of a stream's fields, and their types in Spark."""


TIME = "ts"
"""The field that says when a row happened, of streams that have one."""


@dataclass(frozen=True)
class Contest:
    """One query. Spark joins the topics in the order of `fields`."""

    name: str
    """Of the query where it is a shipped one."""
    scenario: str
    fields: dict[str, Fields]
    """By topic, what its contract names. Streams of the scenario that are not here are not sent."""
    on: dict[str, tuple[str, str]]
    """By each topic but the first: the columns that are equal, one of those joined so far, and its
    own. Columns are called `<topic>_<field>`."""
    keys: dict[str, str]
    """By key of the results, the column that it is in Spark's."""
    rows: int
    """Of each topic, unless it is said otherwise."""
    join_factor: float
    """Target: so many times faster than Spark's joins, at full size."""
    window_s: int | None = None
    """All rows of a result lie within so much, by their field `TIME`; None: there is no window."""
    lateness_s: int = 0
    file: Path | None = None
    """Of a query that is not shipped."""

    @property
    def query(self) -> str:
        """Name or path of the query, for spillway."""
        return self.name if self.file is None else str(self.file)

    @property
    def digested(self) -> list[str]:
        """The columns of results that are compared: keys, then fields that are no keys."""
        of_keys = {column for pair in self.on.values() for column in pair}
        fields = [
            f"epoch_us({topic}_{name})" if kind == "timestamp" else f"{topic}_{name}"
            for topic, mine in self.fields.items()
            for name, kind in mine.items()
            if f"{topic}_{name}" not in of_keys
        ]
        return [*self.keys, *fields]

    def resized(self, rows: int, keys: int | None) -> Scenario:
        """Its scenario with `rows` rows a stream; `keys` keys, in proportion when not given."""
        base = load_scenario(self.scenario)
        share = rows / self.rows
        domains = {
            name: each.model_copy(update={"count": max(1, round((each.count or 1) * share))})
            for name, each in base.domains.items()
        }
        streams = {name: base.streams[name] for name in self.fields}
        more: dict[str, object] = {"rows": rows, "domains": domains, "streams": streams}
        if base.keys is not None:
            count = keys or max(1, round((base.keys.count or 1) * share))
            more["keys"] = base.keys.model_copy(update={"count": count})
        return base.model_copy(update=more)


SYMBOL = Contest(
    name="symbol",
    scenario="bench",
    fields={
        "stock": {"symbol": "string", "ts": "timestamp", "price": "double", "currency": "string"},
        "volume": {"symbol": "string", "ts": "timestamp", "shares": "long"},
        "review": {
            "symbol": "string",
            "ts": "timestamp",
            "reviewer": "string",
            "rating": "int",
            "text": "string",
        },
    },
    on={
        "volume": ("stock_symbol", "volume_symbol"),
        "review": ("stock_symbol", "review_symbol"),
    },
    keys={"symbol": "stock_symbol"},
    rows=2_000_000,
    join_factor=12.0,
)
FIVE_WAY = Contest(
    name="five_way",
    scenario="bench-five-way",
    fields={
        "a": {"a1": "long", "a2": "double"},
        "b": {"b1": "long", "b2": "double"},
        "c": {"c1": "long", "c2": "long"},
        "d": {"d1": "long", "d2": "long"},
        "e": {"e1": "long", "e2": "double"},
    },
    on={
        "b": ("a_a1", "b_b1"),
        "c": ("a_a1", "c_c1"),
        "d": ("c_c2", "d_d1"),
        "e": ("d_d2", "e_e1"),
    },
    keys={"k1": "a_a1", "k2": "c_c2", "k3": "d_d2"},
    rows=300_000,
    join_factor=8.0,
)
SYMBOL_WINDOW = replace(
    SYMBOL,
    name="symbol_window",
    scenario="bench-window",
    join_factor=8.0,
    window_s=3600,
    lateness_s=240,
)
PAIR_WINDOW = replace(
    SYMBOL_WINDOW,
    name="pair_window",
    fields={name: SYMBOL.fields[name] for name in ("stock", "volume")},
    on={"volume": SYMBOL.on["volume"]},
    file=Path(__file__).with_name("pair_window.toml"),
)
CONTESTS = {each.name: each for each in (SYMBOL, FIVE_WAY, SYMBOL_WINDOW, PAIR_WINDOW)}
