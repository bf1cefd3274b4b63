"""`spillway config show`: every setting with its value, unit and origin, at any width.

Where the table does not fit, nothing is cut: a setting takes more lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spillway.plain import plain
from spillway_schemas.settings import Setting, SettingOrigin

_GAP = "  "
_ORIGIN = len("environment")
"""The longest word for a source."""


def settings_table(
    settings: Iterable[Setting],
    values: Mapping[str, object],
    origins: Mapping[str, SettingOrigin],
    console: Console,
) -> RenderableType:
    """The settings for a console. `values` and `origins`: by the setting's dotted name."""
    listed = list(settings)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("setting", "value", "unit", "origin"):
        table.add_column(name, no_wrap=True)
    for each in listed:
        value, origin = plain(str(values[each.name])), plain(str(origins[each.name]))
        table.add_row(*map(Text, (each.name, value, each.unit, origin)))
    unbound = console.options.update(width=1_000)
    if Measurement.get(console, unbound, table).maximum <= console.width:
        return table
    lines = narrow(listed, values, origins, console.width)
    return Group(*(Text(line, no_wrap=True, overflow="ignore") for line in lines))


def narrow(
    settings: Iterable[Setting],
    values: Mapping[str, object],
    origins: Mapping[str, SettingOrigin],
    width: int,
) -> Iterator[str]:
    """The same as lines of `width` columns: longer only where a single word is.

    The first line of a setting has its name, its value with the unit, and the kind of its origin;
    which line, variable or flag that is follows below.
    """
    listed = list(settings)
    named = max(len(each.name) for each in listed)
    room = max(width - named - _ORIGIN - 2 * len(_GAP), 12)
    yield f"{'setting':{named}}{_GAP}{'value and unit':{room}}{_GAP}origin"
    for each in listed:
        value, origin = plain(str(values[each.name])), origins[each.name]
        cells = _wrapped(f"{value} ({each.unit})" if each.unit else value, room)
        below = [] if origin.source == "default" else [f"from {plain(str(origin))}"]
        if any(len(cell) > room for cell in cells):
            below, cells = [" ".join(cells), *below], [""]
        yield f"{each.name:{named}}{_GAP}{cells[0]:{room}}{_GAP}{origin.source}".rstrip()
        indent = " " * (named + len(_GAP))
        yield from (indent + cell for cell in cells[1:])
        for text in below:
            yield (indent if len(indent) + len(text) <= width else " " * 4) + text


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
