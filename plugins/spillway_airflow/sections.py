"""Sections of Airflow's configuration: each stands for one warehouse with its stream.

`[spillway]` (in airflow.cfg, or `AIRFLOW__SPILLWAY__*`) is the one that most have. Another
warehouse in the same Airflow has a section of its own, named in `[spillway] sections`: a page, a
stream and, by a DAG file that names the section, DAGs of its own. Their ids begin with the
section's `dag_prefix`. The page's rights are those of the DAGs.

The settings file of a section may name several queries (`[queries.NAME]`). Then the section stands
for all of them, and each has a section of its own, `<section>_NAME`, which nobody need write: what
it does not say is that of the section whose settings file it is (`INHERITED`).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from spillway_schemas.tomlfile import TomlError, read_toml

SPILLWAY = "spillway"
"""The section that is used where none is named."""
INHERITED = frozenset(
    {
        "config",
        "command",
        "docs_url",
        "calendar",
        "open_lead_s",
        "close_delay_s",
        "rebalance_every_s",
        "complete_within_s",
        "alert_command",
        "maintenance_at",
        "start_date",
        "launcher",
        "kafka_connection",
        "registry_connection",
        "warehouse_connection",
    }
)
"""What the section of a named query has from the one whose settings file it is in. Of the rest two
streams cannot have the same: how one is started, where it runs."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class SectionError(ValueError):
    """A section's name that cannot be one."""


class SettingError(ValueError):
    """A value of a section that cannot be one. The message says what to write."""


class NamedQuery(NamedTuple):
    """A query of the settings file of a section."""

    base: str
    """That section."""
    name: str

    @property
    def section(self) -> str:
        """Its own."""
        return f"{self.base}_{self.name}"


def setting(name: str, section: str = SPILLWAY) -> str | None:
    """A value of a section in Airflow's configuration; None when there is none."""
    if found := _said(name, section):
        return found
    query = named_query(section) if name in INHERITED else None
    return None if query is None else _said(name, query.base)


def span(name: str, section: str, default_s: float) -> timedelta:
    """A time in seconds that a section sets. Raises `SettingError`."""
    found = setting(name, section)
    try:
        return timedelta(seconds=default_s if found is None else float(found))
    except (ValueError, OverflowError):
        raise SettingError(
            f"[{section}] {name} = {found!r}: write a number of seconds, such as {default_s:g}"
        ) from None


def moment(name: str, section: str, default: str) -> datetime:
    """A date and time that a section sets. Raises `SettingError`."""
    found = setting(name, section) or default
    try:
        return datetime.fromisoformat(found)
    except ValueError:
        raise SettingError(
            f"[{section}] {name} = {found!r}: write a date and time, such as {default}"
        ) from None


def _said(name: str, section: str) -> str | None:
    from airflow.configuration import conf

    found: str | None = conf.get(section, name, fallback=None)
    return found or None


def _written() -> list[str]:
    """The sections that somebody has named, `spillway` first."""
    more = (setting("sections") or "").replace(",", " ").split()
    for name in more:
        if not _NAME.fullmatch(name):
            raise SectionError(
                f"[{SPILLWAY}] sections: {name!r} must be of lower-case letters, digits and _, "
                "as in spillway_london"
            )
    return list(dict.fromkeys([SPILLWAY, *more]))


def sections() -> list[str]:
    """All sections that stand for one warehouse, `spillway` first, or its queries. Raises
    SectionError for a name that no path could hold."""
    return list(dict.fromkeys(name for base in _written() for name in query_sections(base)))


def query_sections(base: str = SPILLWAY) -> list[str]:
    """The sections that a section stands for: itself, unless its settings file only has named
    queries, and one for each of these."""
    names, has_own = _queries_of(base)
    return [*([base] if has_own else []), *(NamedQuery(base, name).section for name in names)]


def named_query(section: str) -> NamedQuery | None:
    """The named query that a section is for; None: it is for the one of its settings file."""
    for base in _written() if "_" in section else ():
        for name in _queries_of(base)[0] if section.startswith(f"{base}_") else ():
            if (query := NamedQuery(base, name)).section == section:
                return query
    return None


def _queries_of(base: str) -> tuple[list[str], bool]:
    """The names of the queries in a section's settings file, and whether it has one without.

    A file that cannot be read has none: whatever uses it says what is wrong.
    """
    try:
        data = read_toml(Path(_said("config", base) or "spillway.toml")).data
    except TomlError:
        return [], True
    found = data.get("queries")
    names = [name for name in found if _NAME.fullmatch(name)] if isinstance(found, dict) else []
    own = data.get("query")
    return names, not names or (own is not None and own not in names)


def page_name(section: str) -> str:
    """What a section's page is called in Airflow's navigation."""
    return section.replace("_", " ").capitalize()


def dag_id(name: str, section: str = SPILLWAY) -> str:
    """The id of a DAG of a section, e.g. `spillway_market_close`."""
    return (setting("dag_prefix", section) or f"{section}_") + name
