"""Secrets out of Airflow's connections, for the commands of a section.

A section may name a connection for each table of options in spillway's settings that holds secrets:

| `[spillway]` | goes into | login and password become |
|---|---|---|
| `kafka_connection` | `kafka.options` | `sasl.jaas.config`, by the extra's `sasl.mechanism` |
| `registry_connection` | `registry.options` | `basic.auth.user.info` |
| `warehouse_connection` | `warehouse.options` | by the connection's type: `aws`, `wasb` |

The connection's extra is a JSON object of further options, by the names that the table has. Host,
port and schema are not looked at: where everything is stays in the settings.

Model: a connection is looked up when a command starts, and its options are merged into the variable
(`SPILLWAY_KAFKA__OPTIONS`, ...) that this command alone gets. Tables are merged key by key, so that
options without secrets stay in the settings file.

Invariants:
* An option is in the memory of Airflow's process until the command has started, and then in that
  process's environment, which its own user and root can read. It is in no argument, no template
  field, no XCom and no file.
* Airflow's logs mask each value before anybody could print it.
* A problem is told by the names of setting, connection and option; no value is repeated.

Known limitation: what runs has the secrets that it began with. After a change, restart the stream.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from airflow.sdk import Connection
from airflow.sdk.exceptions import (
    AirflowNotFoundException,
    AirflowRuntimeError,
    AirflowSecretsBackendAccessDenied,
)
from airflow.sdk.log import amask_secret, mask_secret
from pydantic import ValidationError

from spillway_airflow.sections import SPILLWAY, setting
from spillway_schemas.secret import HIDDEN, escaped, shown
from spillway_schemas.setting_fields import (
    ENV_DELIMITER,
    ENV_PREFIX,
    KafkaSettings,
    RegistrySettings,
    Section,
    WarehouseSettings,
    flat_options,
)
from spillway_schemas.settings import SettingsError

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Kafka's login modules by mechanism."""
_OF_LIBRDKAFKA = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "the connection's login",
    "sasl.password": "the connection's password",
    "ssl.ca.location": "ssl.truststore.location, with ssl.truststore.type = PEM",
    "ssl.certificate.location": "ssl.keystore.location, with ssl.keystore.type = PEM",
    "ssl.key.location": "ssl.keystore.location, one file with the key and its certificate",
}
"""Names of connections that Airflow's Kafka provider reads, with what says the same here."""
_STORES = {
    "aws": ("aws_access_key_id", "aws_secret_access_key"),
    "wasb": ("azure_storage_account_name", "azure_storage_account_key"),
}
"""By a connection's type, which options of the store its login and password are."""


class Connected(Protocol):
    """What is looked at of a connection, whichever of Airflow's classes it is of."""

    conn_type: str | None
    login: str | None
    password: str | None
    extra: str | None


class ConnectionProblem(SettingsError):
    """A connection that is not there, or whose options cannot be used."""


class _Unusable(ValueError):
    """What is wrong with a connection; no value is in it."""


def kafka_options(found: Connected) -> dict[str, str]:
    """Client options by their Java names. Raises `ValueError`."""
    options = _extra(found)
    for name, meant in _OF_LIBRDKAFKA.items():
        if name in options:
            raise _Unusable(f"its extra has {name}, a name of librdkafka's: write {meant}")
    if (login := _login(found)) is not None:
        mechanism = options.get("sasl.mechanism", "")
        if mechanism not in _MODULES:
            raise _Unusable(
                "it has a login, so its extra must say sasl.mechanism: " + ", ".join(_MODULES)
            )
        user, password = map(escaped, login)
        line = f'{_MODULES[mechanism]} required username="{user}" password="{password}";'
        _add(options, "sasl.jaas.config", line)
    return _allowed(KafkaSettings, options)


def registry_options(found: Connected) -> dict[str, str]:
    """Options of the registry's client. Raises `ValueError`."""
    options = _extra(found)
    if (login := _login(found)) is not None:
        _add(options, "basic.auth.user.info", ":".join(login))
    return _allowed(RegistrySettings, options)


def warehouse_options(found: Connected) -> dict[str, str]:
    """Options of the object store by delta-rs's names. Raises `ValueError`."""
    options = _extra(found)
    if (login := _login(found)) is not None:
        if found.conn_type not in _STORES:
            raise _Unusable(
                f"what login and password are is known for connections of type {', '.join(_STORES)}"
                f", not {found.conn_type}: put the store's options into its extra"
            )
        for name, value in zip(_STORES[found.conn_type], login, strict=True):
            _add(options, name, value)
    return _allowed(WarehouseSettings, options)


def _extra(found: Connected) -> dict[str, str]:
    """The options in a connection's extra; nested names (`{"ssl": {...}}`) are joined by dots."""
    try:
        given = json.loads(found.extra or "{}")
    except ValueError:
        raise _Unusable("its extra is not JSON") from None
    if not isinstance(given, Mapping):
        raise _Unusable("its extra is no JSON object")
    flat = flat_options(given)
    assert isinstance(flat, dict)
    return flat


def _login(found: Connected) -> tuple[str, str] | None:
    """Login and password; None when the connection has neither."""
    if not found.login and not found.password:
        return None
    if not found.login or not found.password:
        raise _Unusable("it has only one of login and password")
    return found.login, found.password


def _add(options: dict[str, str], name: str, value: str) -> None:
    if name in options:
        raise _Unusable(f"its login and its extra both say {name}: keep one")
    options[name] = value


def _allowed(section: type[Section], options: dict[str, str]) -> dict[str, str]:
    """The options, once the settings' own rules allow them."""
    if not options:
        raise _Unusable("it has neither a login nor an extra")
    try:
        section.model_validate({"options": options})
    except ValidationError as error:
        each = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in each["loc"][1:])
        said = each["msg"].removeprefix("Value error, ")
        raise _Unusable(f"its extra: {where}: {said}" if where else said) from None
    return options


OPTIONS: dict[str, Callable[[Connected], dict[str, str]]] = {
    "kafka": kafka_options,
    "registry": registry_options,
    "warehouse": warehouse_options,
}
"""By the section of spillway's settings, what makes its options of a connection."""


@dataclass(frozen=True)
class NamedConnection:
    """A connection that a section of Airflow's configuration names."""

    section: str
    part: str
    """Of spillway's settings: a key of `OPTIONS`."""
    name: str
    """Its id in Airflow."""

    @property
    def variable(self) -> str:
        """What hands its options on, a JSON object."""
        return f"{ENV_PREFIX}{self.part}{ENV_DELIMITER}options".upper()

    def options(self, found: Connected) -> dict[str, str]:
        """Its options. Raises `ConnectionProblem`."""
        try:
            return OPTIONS[self.part](found)
        except _Unusable as error:
            raise self._problem(f"{error}") from None

    @contextmanager
    def looked_up(self) -> Iterator[None]:
        """Say what to do when Airflow does not give it. Raises `ConnectionProblem`."""
        try:
            yield
        except AirflowNotFoundException:
            raise self._problem(
                "Airflow has no connection of this name, or cannot read it. Add it (Admin, "
                f"Connections, or `airflow connections import`), or leave {self.part}_connection "
                f"out and give {self.variable} to Airflow's processes"
            ) from None
        except (AirflowRuntimeError, AirflowSecretsBackendAccessDenied) as error:
            raise self._problem(f"Airflow does not give it: {error}") from None

    def _problem(self, what: str) -> ConnectionProblem:
        return ConnectionProblem(f"[{self.section}] {self.part}_connection = {self.name}: {what}")

    def merged(self, environ: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
        """An environment with the options in it, before those that its variable has already.

        Raises `ConnectionProblem`.
        """
        # Names of variables are looked for in any case, so two that differ in it may be there.
        known = [name for name in environ if name.upper() == self.variable]
        table: dict[str, object] = {}
        for name in known:
            try:
                given = flat_options(json.loads(environ[name]))
            except ValueError:
                given = None
            if not isinstance(given, dict):
                raise self._problem(
                    f"{name} is set, too, and is no JSON object, so that the connection's options "
                    "cannot be added to it"
                )
            table |= given
        rest = {name: value for name, value in environ.items() if name not in known}
        return {**rest, self.variable: json.dumps({**table, **options})}


def named_connections(section: str = SPILLWAY) -> list[NamedConnection]:
    """The connections that a section names."""
    named = {part: setting(f"{part}_connection", section) for part in OPTIONS}
    return [NamedConnection(section, part, name) for part, name in named.items() if name]


def environment(section: str = SPILLWAY) -> dict[str, str]:
    """The environment of a section's command: this process's, with the connections' options.

    Raises `ConnectionProblem`.
    """
    found = dict(os.environ)
    for each in named_connections(section):
        with each.looked_up():
            options = each.options(Connection.get(each.name))
        mask_secret(_hidden(options))
        found = each.merged(found, options)
    return found


async def environment_async(section: str = SPILLWAY) -> dict[str, str]:
    """`environment` for a trigger, whose event loop must not wait."""
    found = dict(os.environ)
    for each in named_connections(section):
        with each.looked_up():
            options = each.options(await Connection.async_get(each.name))
        await amask_secret(_hidden(options))
        found = each.merged(found, options)
    return found


def _hidden(options: Mapping[str, str]) -> list[Any]:
    """The values that nobody may see."""
    seen = shown(options)
    return [value for name, value in options.items() if seen[name] == HIDDEN]
