"""Several queries side by side: a line for each, as `spillway status` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spillway.plain import plain
from spillway.report.looking import Looker
from spillway.report.model import Status
from spillway.report.words import bytes_text, count_text, part_text, span_text
from spillway.tables import NothingYet, NoWarehouse, WarehouseError
from spillway_schemas.exits import FAILED
from spillway_schemas.settings import Settings, SettingsError


class QueryStatus(BaseModel):
    """One query's status, or why there is none."""

    name: str
    status: Status | None = None
    problem: str = ""
    code: int = 0
    """With which the command of this query alone would end."""


def look_at_each(
    every: Iterable[tuple[str, Settings | SettingsError]], newest: int | None
) -> list[QueryStatus]:
    """Look at each, by its name and settings. One that cannot be seen hides no other."""
    found = []
    for name, settings in every:
        if isinstance(settings, SettingsError):
            found.append(_unseen(name, settings, str(settings)))
            continue
        try:
            found.append(QueryStatus(name=name, status=Looker(settings).look(newest=newest)))
        except (NoWarehouse, NothingYet) as nothing:
            found.append(_unseen(name, nothing, "nothing yet: start its stream"))
        except (WarehouseError, OSError, ValueError) as error:
            found.append(_unseen(name, error, str(error)))
    return found


def _unseen(name: str, error: Exception, problem: str) -> QueryStatus:
    return QueryStatus(name=name, problem=problem, code=getattr(error, "exit_code", FAILED))


def exit_code(found: Sequence[QueryStatus]) -> int:
    """Of a look at all: 0 where any was seen. Else what all of them come to, or 3."""
    codes = {each.code for each in found}
    if 0 in codes:
        return 0
    return codes.pop() if len(codes) == 1 else FAILED


def as_json(found: Sequence[QueryStatus]) -> list[dict[str, Any]]:
    """What `--json` prints: a list, in the file's order."""
    return [
        each.model_dump(mode="json", exclude={"status": {"detail"}, "code": True}) for each in found
    ]


def several_table(found: Sequence[QueryStatus]) -> RenderableType:
    """A line for each query that has a journal; below, what is wrong with which."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("query", no_wrap=True)
    table.add_column("session", no_wrap=True)
    for title in ("rows in", "lag", "memory", "last epoch", "unproved"):
        table.add_column(title, justify="right", no_wrap=True)
    problems = []
    for each in found:
        if each.status is not None:
            table.add_row(*(Text(cell) for cell in (each.name, *_cells(each.status))))
        if problem := each.problem or (each.status.query_problem if each.status else ""):
            problems.append(Text(plain(f"{each.name}: {problem}"), style="yellow"))
    return Group(*([table] if table.row_count else []), *problems)


def _cells(status: Status) -> tuple[str, ...]:
    (now,) = (each for each in status.sessions if each.session == status.session)
    held = sum(slot.state_bytes for slot in status.slots)
    budget = sum(slot.budget_bytes for slot in status.slots)
    share = f", {part_text(held / budget)}" if budget else ""
    age_s = status.last_epoch_age_s
    ended = [each for each in status.sessions if each.ended_at is not None]
    return (
        f"{now.session} {now.stage}",
        count_text(sum(now.rows_in.values())),
        "?" if status.lag_rows is None else count_text(status.lag_rows),
        f"{bytes_text(held)}{share}",
        "none yet" if age_s is None else f"{span_text(age_s)} ago",
        str(sum(each.verdict is None for each in ended)),
    )
