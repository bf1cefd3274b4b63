"""Columns of a table whose query changes: what both queries' rows fit. Pure.

Model: columns as Delta writes them, a struct of fields. `united` has every column of either side.
A column that only one side has may be null, for rows of the other one have none. The order is the
table's, with new columns behind it. So files that were written before stay as they are, and every
reader takes what a file lacks for null.

A column keeps its type for ever. (Delta can widen some, but not in the protocol that every reader
knows.)
"""

from __future__ import annotations

from typing import Any

Fields = list[dict[str, Any]]
"""Of each column: `name`, `type` (a name, or an object of a nested one), `nullable`, `metadata`."""


class ColumnConflict(ValueError):
    """A column of the table is another one in the query: of which name, and how."""


def united(found: Fields, wanted: Fields, within: str = "") -> Fields:
    """The columns of a table with those of a query. `within`: the struct that they are parts of.

    Raises `ColumnConflict` for a column of another type, or whose name differs in case alone.
    """
    asked = {each["name"]: each for each in wanted}
    has = {each["name"].lower(): each["name"] for each in found}
    for name in asked:
        if (known := has.get(name.lower(), name)) != name:
            raise ColumnConflict(
                f"has {within}{known}, and the query {within}{name}, which Delta takes for the same"
            )
    columns: Fields = []
    for each in found:
        other = asked.pop(each["name"], None)
        if other is None:
            columns.append({**each, "nullable": True})
            continue
        name = within + each["name"]
        columns.append(
            {
                **each,
                "type": _united_type(each["type"], other["type"], name),
                "nullable": each["nullable"] or other["nullable"],
            }
        )
    return [*columns, *({**each, "nullable": True} for each in asked.values())]


def _united_type(found: Any, wanted: Any, name: str) -> Any:
    if found == wanted:
        return found
    if _is_struct(found) and _is_struct(wanted):
        return {**found, "fields": united(found["fields"], wanted["fields"], f"{name}.")}
    raise ColumnConflict(f"has {name} as {_shown(found)}, and the query as {_shown(wanted)}")


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, dict) and type_.get("type") == "struct"


def _shown(type_: Any) -> str:
    return str(type_["type"]) if isinstance(type_, dict) else str(type_)
