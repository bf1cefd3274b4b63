"""Settings: loading them, and saying where each value came from.

The fields are in `spillway_schemas.setting_fields`. Sources, the later one wins: defaults, the
settings file (`spillway.toml`), environment variables `SPILLWAY_<SECTION>__<NAME>`, flags. Tables
such as `kafka.options` are merged key by key; everything else is replaced. A key that does not
exist is refused in all of them, since a setting with a typing error is otherwise a setting
that silently does nothing.

A settings file may hold several queries, a table `[queries.NAME]` for each: it names the query's
file, and says otherwise what is different for this one. A `query` that is such a name chooses it.
What is said of one query goes before the file and the environment, which are for all; flags go
before it. Each has its own warehouse and state, below those of all (`OF_EACH`).

Paths are absolute once loaded: relative ones belong to the folder of the settings file when
they come from it or are defaults, to the working directory when they come from the
environment or a flag. Workers may run in another directory.

Known limitation: environment variables without `__` other than `SPILLWAY_QUERY` are looked at
only as far as they resemble a setting (`SPILLWAY_STATE_SLOTS` and `SPILLWAY_SLOTS` are refused).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ByteSize, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource
from pydantic_settings import SettingsError as EnvironmentError_

from spillway_schemas.exits import USAGE
from spillway_schemas.secret import hide_before_at, hide_credentials, shown
from spillway_schemas.setting_fields import (
    ENV_DELIMITER,
    ENV_PREFIX,
    RESERVED_KAFKA_OPTIONS,
    KafkaSettings,
    MetricsSettings,
    PlanSettings,
    RecoverySettings,
    RegistrySettings,
    ResultsSettings,
    Section,
    SessionSettings,
    Settings,
    SparkSettings,
    SpillSettings,
    StateSettings,
    StreamSettings,
    WarehouseSettings,
    flat_options,
)
from spillway_schemas.stores import is_uri
from spillway_schemas.tomlfile import TomlError, TomlFile, read_toml

__all__ = [
    "QUERIES",
    "RESERVED_KAFKA_OPTIONS",
    "KafkaSettings",
    "MetricsSettings",
    "PlanSettings",
    "RecoverySettings",
    "RegistrySettings",
    "ResultsSettings",
    "SessionSettings",
    "Setting",
    "SettingOrigin",
    "Settings",
    "SettingsError",
    "SparkSettings",
    "SpillSettings",
    "StateSettings",
    "StreamSettings",
    "WarehouseSettings",
    "catalogue",
    "load_settings",
    "named_queries",
    "values",
]

FILE_NAME = "spillway.toml"


class SettingsError(ValueError):
    """Settings that cannot be used. The message has one line for each problem."""

    exit_code = USAGE


@dataclass(frozen=True)
class SettingOrigin:
    """Where a value came from; `str()` is what `config show` prints."""

    source: Literal["default", "file", "environment", "flag"]
    detail: str = ""

    def __str__(self) -> str:
        return self.detail or self.source


PATHS = ("kafka.data_dir", "warehouse.root", "state.root")
"""Settings that name a folder and become absolute."""
TABLES = ("kafka.options", "registry.options", "warehouse.options")
"""Settings that are tables of names, whose values may be secrets."""


QUERIES = "queries"
"""The table of the settings file with the named queries, and the folder of their tables."""
OF_EACH = ("warehouse.root", "state.root")
"""Settings of which a named query has its own folder, `queries/NAME`, unless it says another."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Setting:
    """One setting as documentation and `config show` need it."""

    name: str
    section: str
    type: str
    unit: str
    description: str
    why: str
    default: object
    env: str


def catalogue() -> list[Setting]:
    """Every setting in the order of the model, with this machine's defaults."""
    return [
        Setting(
            name=name,
            section=name.rpartition(".")[0],
            type=_type_name(info.annotation),
            unit=_extra(info, "unit"),
            description=info.description or "",
            why=_extra(info, "why"),
            default=_value(_DEFAULTS, name),
            env=_variable(name),
        )
        for name, info in _fields()
    ]


def values(settings: Settings) -> dict[str, object]:
    """Every setting's value by its dotted name, as it may be shown, in the order of the model."""
    found = {name: _value(settings, name) for name, _ in _fields()}
    return {name: shown(v) if isinstance(v, Mapping) else v for name, v in found.items()}


def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, dict[str, SettingOrigin]]:
    """Load settings and say where each came from.

    `path`: the settings file; None: `spillway.toml` of the working directory when it exists.
    `overrides`: flags, as dotted names (`{"state.slots": 4}`); a value None is no flag.
    `environ`: for tests; the process's environment by default.
    Returns the settings and the origin of every dotted name. Raises SettingsError.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    file = _read_file(path)
    from_env, env_names = _read_environment(environ, problems)
    flags = {name: value for name, value in (overrides or {}).items() if value is not None}
    known = {name for name, _ in _fields()}
    for name, value in list(flags.items()):
        table = next((each for each in TABLES if f"{name}.".startswith(f"{each}.")), None)
        if table is not None and isinstance(value, str):
            del flags[name]
            problems.append(
                f"--set {name}: no flag gives a table: write it into the settings file below "
                f"[{table}], or as a JSON object into {_variable(table)}"
            )
        elif name not in known:
            problems.append(f"--set {name}: {_unknown(name, known)}")
    merged: dict[str, Any] = {}
    origins = {name: SettingOrigin("default") for name in known}
    named = _named(file)
    of_all = {} if file is None else {k: v for k, v in file.data.items() if k != QUERIES}
    layers: list[tuple[dict[str, Any], str]] = []
    if file is not None:
        layers.append((_normal(of_all), "file"))
    layers.append((_normal(from_env), "environment"))
    given = [flags.get("query"), from_env.get("query"), of_all.get("query")]
    chosen = next((str(each) for each in given if each is not None), None)
    if named and chosen is None:
        raise SettingsError(
            f"{file.path if file else ''}: there are several queries: name one, "
            f"--query {' or '.join(named)}"
        )
    if named and chosen is not None and chosen not in named and not _is_query(chosen):
        raise SettingsError(f"there is no query {chosen!r}; there are: {', '.join(named)}")
    if chosen in named:
        flags.pop("query", None)  # it says which, and has been heard
        layers.append((_normal(named[chosen]), "query"))
    layers.append((_nested({n: v for n, v in flags.items() if n in known}), "flag"))
    for layer, source in layers:
        _merge(merged, layer)
        for name in known:
            if _holds(layer, name):
                origins[name] = _origin(source, name, file, env_names, chosen)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        problems += _explain(error, known, origins, file, named.get(chosen or "", {}), chosen)
        settings = _DEFAULTS
    if problems:
        raise SettingsError("\n".join(dict.fromkeys(problems)))
    ordered = {name: origins[name] for name, _ in _fields()}
    found = _absolute(settings, ordered, file)
    return (_with_own_places(found, chosen, named[chosen]) if chosen in named else found), ordered


def named_queries(path: Path | None = None) -> list[str]:
    """The names of the settings file's queries, in its order. `path`: as for `load_settings`.

    Raises SettingsError for a file that cannot be read, and for a name that none can have.
    """
    return list(_named(_read_file(path)))


def _named(file: TomlFile | None) -> dict[str, dict[str, Any]]:
    """What the file says of each named query. Raises SettingsError."""
    if file is None or QUERIES not in file.data:
        return {}
    found = file.data[QUERIES]
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise SettingsError(f"{file.where((QUERIES,))}: write a table for each: [queries.NAME]")
    for name, said in found.items():
        where = file.where((QUERIES, name))
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{where}: {name!r} is no name of a query: use up to 40 lower-case letters, digits "
                "and _, a letter first"
            )
        if "query" not in said:
            raise SettingsError(f'{where}: say which query it is: query = "{name}.toml"')
    return found


def _is_query(name: str) -> bool:
    """Whether a name is that of a file, or of a shipped query."""
    shipped = Path(__file__).parent / QUERIES / f"{name}.toml"
    return name.endswith(".toml") or "/" in name or shipped.exists()


def _with_own_places(settings: Settings, name: str, said: Mapping[str, Any]) -> Settings:
    """The settings of a named query, with folders of its own."""
    update: dict[str, object] = {}
    for each in OF_EACH:
        if _holds(said, each):
            continue
        section, _, inner = each.partition(".")
        own = f"{str(_value(settings, each)).rstrip('/')}/{QUERIES}/{name}"
        update[section] = getattr(settings, section).model_copy(update={inner: own})
    found = settings.model_copy(update=update)
    found._name = name
    return found


# ----------------------------------------------------------------------------------- sources


def _read_file(path: Path | None) -> TomlFile | None:
    if path is None:
        path = Path(FILE_NAME)
        if not path.exists():
            return None
    try:
        return read_toml(path)
    except TomlError as error:
        raise SettingsError(str(error)) from None


def _read_environment(
    environ: Mapping[str, str], problems: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of SPILLWAY_ variables, and for each dotted name the variable it came from."""
    known = {name for name, _ in _fields()}
    by_env = {name.replace(".", ENV_DELIMITER).upper(): name for name in known}
    names: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        rest = variable[len(ENV_PREFIX) :].upper()
        exact = by_env.get(rest)
        inside = next(
            (n for e, n in by_env.items() if rest.startswith(e + ENV_DELIMITER) and _is_table(n)),
            None,
        )
        if exact or inside:
            names[exact or inside or ""] = variable
            wanted[variable] = environ[variable]
        elif ENV_DELIMITER in rest:
            name = rest.replace(ENV_DELIMITER, ".").lower()
            problems.append(f"{variable}: {_unknown(name, known)}")
        else:
            flat = {e.replace(ENV_DELIMITER, "_"): e for e in by_env}
            if rest in flat:
                problems.append(
                    f"{variable}: not a setting; two underscores are needed: "
                    f"{ENV_PREFIX}{flat[rest]}"
                )
            elif meant := _meant(rest, flat):
                problems.append(f"{variable}: not a setting; did you mean {' or '.join(meant)}?")
    try:
        return _FromEnvironment(wanted)(), names
    except EnvironmentError_ as error:
        cause = str(error.__cause__ or error)
        tables = ", ".join(v for n, v in names.items() if _is_table(n))
        raise SettingsError(f"{tables}: a table is written as a JSON object: {cause}") from None


def _meant(rest: str, flat: Mapping[str, str]) -> list[str]:
    """Variables that one without a section may have been meant for; none: it is not for us.

    Others have variables with our prefix (Kubernetes for a service of our name, say), so only what
    resembles a setting is looked at. `flat`: names of variables by what they are with one `_`.
    """
    inner = sorted(env for env in flat.values() if env.endswith(ENV_DELIMITER + rest))
    near = difflib.get_close_matches(rest, sorted(flat), n=1, cutoff=0.85)
    return [ENV_PREFIX + env for env in inner or [flat[name] for name in near]]


class _FromEnvironment(EnvSettingsSource):
    """pydantic-settings' reader of nested variables, over a given environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Settings, case_sensitive=False)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items()}


def _origin(
    source: str,
    name: str,
    file: TomlFile | None,
    env_names: dict[str, str],
    query: str | None,
) -> SettingOrigin:
    if source in ("file", "query"):
        assert file is not None
        within = (QUERIES, str(query)) if source == "query" else ()
        return SettingOrigin("file", file.where((*within, *name.split("."))))
    if source == "environment":
        return SettingOrigin("environment", env_names.get(name, ENV_PREFIX))
    return SettingOrigin("flag", f"--set {name}")


# ------------------------------------------------------------------------------------ shapes


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    """Dotted name and field of every setting."""
    for name, info in Settings.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, Section):
            for inner, inner_info in section.model_fields.items():
                yield f"{name}.{inner}", inner_info
        else:
            yield name, info


def _variable(name: str) -> str:
    return ENV_PREFIX + name.replace(".", ENV_DELIMITER).upper()


def _is_table(name: str) -> bool:
    return name in TABLES


def _value(settings: Settings, name: str) -> object:
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _holds(layer: Mapping[str, Any], name: str) -> bool:
    value: object = layer
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _normal(layer: dict[str, Any]) -> dict[str, Any]:
    """Flatten `TABLES`, so that dotted and quoted names of two sources merge."""
    for name in TABLES:
        section, _, inner = name.partition(".")
        held = layer.get(section)
        if isinstance(held, dict) and isinstance(held.get(inner), dict):
            layer = {**layer, section: {**held, inner: flat_options(held[inner])}}
    return layer


def _nested(flags: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flags.items():
        section, _, inner = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[inner] = value
    return _normal(nested)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping):
            below = base.get(key)
            base[key] = dict(below) if isinstance(below, Mapping) else {}
            _merge(base[key], value)
        else:
            base[key] = value


def _absolute(
    settings: Settings, origins: Mapping[str, SettingOrigin], file: TomlFile | None
) -> Settings:
    here = Path.cwd()
    home = file.path.parent.resolve() if file is not None else here
    changes: dict[str, dict[str, object]] = {}
    for name in PATHS:
        section, _, inner = name.partition(".")
        value = str(_value(settings, name))
        if is_uri(value):
            continue
        base = home if origins[name].source in ("default", "file") else here
        changes.setdefault(section, {})[inner] = os.path.normpath(base / Path(value).expanduser())
    update: dict[str, object] = {
        section: getattr(settings, section).model_copy(update=change)
        for section, change in changes.items()
    }
    query = settings.query
    if query.endswith(".toml"):
        base = home if origins["query"].source in ("default", "file") else here
        update["query"] = os.path.normpath(base / Path(query).expanduser())
    return settings.model_copy(update=update)


# ------------------------------------------------------------------------------------ errors


def _unknown(name: str, known: set[str]) -> str:
    sections = {n.partition(".")[0] for n in known}
    section = name.partition(".")[0]
    pool = sorted(known if "." in name else sections)
    if near := difflib.get_close_matches(name, pool, n=1, cutoff=0.6):
        return f"there is no setting {name}; did you mean {near[0]}?"
    inside = [n for n in sorted(known) if n.startswith(section + ".")]
    if ending := [n for n in sorted(known) if n.endswith("." + name)]:
        return f"there is no setting {name}; did you mean {' or '.join(ending)}?"
    if not inside:
        return f"there is no setting {name}; 'spillway config show' lists all"
    return f"there is no setting {name}; there are: {', '.join(inside)}"


def _explain(
    error: ValidationError,
    known: set[str],
    origins: Mapping[str, SettingOrigin],
    file: TomlFile | None,
    said: Mapping[str, Any],
    query: str | None,
) -> list[str]:
    """One line for each problem: where it is, what it is, what is allowed. `said`: of the chosen
    query."""
    lines = []
    told: dict[tuple[str, str], int] = {}
    for item in error.errors(include_url=False):
        location = tuple(str(part) for part in item["loc"])
        if item["type"] == "default_factory_not_called":
            continue  # follows from another problem of the same section
        dotted = ".".join(location)
        name = next((n for n in known if dotted == n or dotted.startswith(n + ".")), dotted)
        origin = origins.get(name)
        where = str(origin) if origin and origin.source != "default" else ""
        if not where and file is not None:
            within = (QUERIES, str(query)) if _holds(said, dotted) else ()
            where = file.where((*within, *location))
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: {_unknown(dotted, known)}")
            continue
        text = _WORDS.get(item["type"]) or item["msg"].removeprefix("Value error, ")
        for theirs, ours in _BOUNDS.items():
            text = text.replace(theirs, ours)
        # Only what is known to be no secret is repeated: not a value of a table, and not a text
        # where a table should be.
        repeated = name in known and not _is_table(name)
        given = item["input"]
        if isinstance(given, str) and repr(given) in text:
            repeated = False  # it is said already
        got = f" (got {_brief(given)})" if repeated else ""
        # A flag and a variable say the name already.
        named = where if _says(origin) else f"{where}: {name}"
        text = f"{text[:1].lower()}{text[1:]}"
        if got and (before := told.get((named, got))) is not None:
            # Of a setting that takes one kind of value or another: it is neither.
            lines[before] = f"{lines[before].removesuffix(got)}, or {text}{got}"
            continue
        told[named, got] = len(lines)
        lines.append(f"{named}: {text}{got}")
    return [hide_credentials(line.removeprefix(": ")) for line in lines]


_SIZE = "a number of bytes is needed, or one with its unit such as 512MiB or 2GiB"
_WORDS = {
    "byte_size": _SIZE,
    "byte_size_unit": _SIZE,
    "bool_parsing": "true or false is needed",
    "bool_type": "true or false is needed",
    "int_parsing": "a whole number is needed",
    "int_type": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "float_parsing": "a number is needed",
    "float_type": "a number is needed",
    "string_type": "text in quotes is needed",
    "string_too_short": "it is empty",
    "dict_type": "a table is needed: names with a value each; in a variable it is a JSON object",
    "model_type": "it is a section: write its settings below a line with its name in brackets",
}
"""pydantic's words where they are for programmers."""
_BOUNDS = {
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be": "must be",
}
"""What its sentences begin with, the longest first."""


def _says(origin: SettingOrigin | None) -> bool:
    """Whether what names the origin names the setting, too."""
    return origin is not None and origin.source in ("environment", "flag")


def _brief(value: object) -> str:
    text = repr(hide_before_at(value)) if isinstance(value, str) else hide_before_at(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _type_name(annotation: object) -> str:
    if annotation is ByteSize:
        return "bytes"
    choices = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _type_name(choices[0])
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(_type_name(each) for each in choices)
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(choices)
    if choices and annotation == dict[str, SecretStr]:
        return "table of strings"
    return getattr(annotation, "__name__", str(annotation))


def _extra(info: FieldInfo, key: str) -> str:
    extra = info.json_schema_extra
    return str(extra.get(key, "")) if isinstance(extra, dict) else ""


_DEFAULTS = Settings()
