"""Sections of Airflow's configuration: each stands for one warehouse with its stream.

`[spillway]` (in airflow.cfg, or `AIRFLOW__SPILLWAY__*`) is the one that most have. Another
warehouse in the same Airflow has a section of its own, named in `[spillway] sections`: a page, a
stream and, by a DAG file that names the section, DAGs of its own. Their ids begin with the
section's `dag_prefix`. The page's rights are those of the DAGs.
"""

from __future__ import annotations

import re

SPILLWAY = "spillway"
"""The section that is used where none is named."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class SectionError(ValueError):
    """A section's name that cannot be one."""


def setting(name: str, section: str = SPILLWAY) -> str | None:
    """A value of a section in Airflow's configuration; None when there is none."""
    from airflow.configuration import conf

    found: str | None = conf.get(section, name, fallback=None)
    return found or None


def sections() -> list[str]:
    """All sections, `spillway` first. Raises SectionError for a name that no path could hold."""
    more = (setting("sections") or "").replace(",", " ").split()
    for name in more:
        if not _NAME.fullmatch(name):
            raise SectionError(
                f"[{SPILLWAY}] sections: {name!r} must be of lower-case letters, digits and _, "
                "as in spillway_london"
            )
    return list(dict.fromkeys([SPILLWAY, *more]))


def dag_id(name: str, section: str = SPILLWAY) -> str:
    """The id of a DAG of a section, e.g. `spillway_market_close`."""
    return (setting("dag_prefix", section) or f"{section}_") + name
