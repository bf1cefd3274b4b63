"""What a command was given: settings with flags, and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from spillway.clock import Clock, system_clock
from spillway.commands.terminal import keep_secret
from spillway_schemas.secret import hide_credentials
from spillway_schemas.session_date import SessionDateError, session_date
from spillway_schemas.setting_fields import ENV_PREFIX
from spillway_schemas.settings import Settings, SettingsError, load_settings, named_queries

clock: Clock = system_clock
"""The one clock of the process; handed to what asks for the time."""


@dataclass
class _BeforeTheCommand:
    """Options that stand before the command."""

    config: Path | None = None
    flags: dict[str, object] = field(default_factory=dict)


_before = _BeforeTheCommand()


def before_the_command(config: Path | None, flags: Iterable[str], query: str | None = None) -> None:
    """Keep a settings file, flags `section.name=value` and a query's name for `settings`."""
    _before.config, _before.flags = config, dict(_flag(each) for each in flags)
    if query is not None:
        _before.flags["query"] = query


def _flag(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        first = hide_credentials(next(iter(text.split()), ""))
        raise typer.BadParameter(f"{first!r}: write --set section.name=value")
    if not name.strip():
        raise typer.BadParameter("a name is missing: write --set section.name=value")
    return name.strip(), value.strip()


def settings(**flags: object) -> Settings:
    """The settings; `flags` are options of the command, `section__name`, None where not given."""
    return with_origins(**flags)[0]


def with_origins(**flags: object) -> tuple[Settings, Any]:
    """The same, with where each value came from."""
    given = {name.replace("__", "."): value for name, value in flags.items() if value is not None}
    found, origins = load_settings(_before.config, {**_before.flags, **given})
    keep_secret(found.secrets, found.registry.options)
    return found, origins


def chosen_query() -> str | None:
    """The named query that the command is of; None: of several, or of one without a name."""
    try:
        return settings().name or None
    except SettingsError:
        return None


def query_flag() -> bool:
    """Whether `--query` stood before the command."""
    return "query" in _before.flags


def query(found: Settings) -> Any:
    """The query that the settings name, compiled."""
    from spillway_schemas.query import load_query

    return load_query(found.query)


NamedSettings = tuple[str, Settings | SettingsError]
"""The name of a query, and its settings or what is wrong with them."""


def named_settings() -> list[NamedSettings]:
    """The settings of every named query, in the file's order, and of that without a name where the
    file has one, too; none where it names none. What is wrong with those of one hides no other."""
    found: list[NamedSettings] = []
    for name in named_queries(_before.config):
        try:
            found.append((name, settings(query=name)))
        except SettingsError as error:
            found.append((name, error))
    with suppress(SettingsError):  # no query beside those
        if found and not (own := settings()).name:
            found.insert(0, (own.shown_name, own))
    return found


def readable(every: Iterable[NamedSettings]) -> list[Settings]:
    """The settings of those in which nothing is wrong."""
    return [each for _, each in every if isinstance(each, Settings)]


def each_settings() -> list[NamedSettings]:
    """The settings of the one query that is meant; of several, where none was chosen.

    Raises SettingsError where those of all that are meant are wrong.
    """
    named = []
    if not query_flag() and not os.environ.get(f"{ENV_PREFIX}QUERY"):
        named = named_settings()
    if not named:
        own = settings()
        return [(own.shown_name, own)]
    first = named[0][1]
    if isinstance(first, SettingsError) and not readable(named):
        raise first
    return named


def session_query(found: Settings, of: Any, session: str | None = None) -> Any:
    """The query by which a session of the warehouse `of` runs or ran (None: the open one): the
    settings', where it is that, else the one that the journal keeps. Raises `AnotherQuery`.
    """
    from spillway.protocol.queries import kept_query, session_query
    from spillway.tables import NothingYet
    from spillway_schemas.query import QueryError, load_query

    state = of.journal.state()
    if state is None:
        raise NothingYet(of.place.path())
    try:
        own = load_query(found.query)
    except QueryError:
        if state.genesis.text is None:
            raise
        own = None  # a file that is being changed, say
    if session is None:
        return kept_query(state.genesis, own)
    return session_query(state, session, own)


def warehouse(found: Settings) -> Any:
    """The settings' warehouse, which must exist; PyArrow does without pandas from here on.

    Raises NoWarehouse.
    """
    from spillway.arrow_alone import arrow_alone
    from spillway.tables import opened

    arrow_alone()
    return opened(found.warehouse)


def _date(text: str | None) -> str | None:
    """A session's date, as every option that takes one reads it."""
    try:
        return None if text is None else session_date(text)
    except SessionDateError as error:
        raise typer.BadParameter(str(error)) from None


def dated(help_: str) -> Any:
    """An option that takes a session's date."""
    return typer.Option(help=help_, metavar="YYYY-MM-DD", callback=_date)


CloseDelay = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="How long after a close a scheduler closes the day: session.grace_s must not be "
        "longer.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
