"""Secrets of Airflow's connections: what they become, who gets them, and that nobody sees them."""

from __future__ import annotations

import asyncio
import json
import os
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.log import mask_logs
from hypothesis import strategies as st

from spillway.kafka.options import python_options
from spillway_airflow import connections
from spillway_airflow.command import Running
from spillway_airflow.connections import (
    ConnectionProblem,
    NamedConnection,
    environment,
    environment_async,
    kafka_options,
)
from spillway_airflow.launchers import LaunchFailed, ProcessLauncher
from spillway_airflow.page.app import _Looking
from spillway_airflow.triggers import SealedTrigger
from spillway_schemas.secret import revealed
from spillway_schemas.settings import load_settings
from tests.doc_blocks import blocks
from tests.lanes import explored

SECRET = 'riv"er\\bank'
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    r'username="desk" password="riv\"er\\bank";'
)
EXTRA = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
Settings = dict[str, str]


def connection(
    kind: str = "generic",
    login: str | None = None,
    password: str | None = None,
    extra: Any = None,
) -> Any:
    text = extra if isinstance(extra, str) or extra is None else json.dumps(extra)
    return SimpleNamespace(conn_type=kind, login=login, password=password, extra=text)


@pytest.fixture
def desk(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Airflow has a connection `desk`, which the section names for Kafka."""
    made = {"conn_type": "generic", "login": "desk", "password": SECRET, "extra": EXTRA}
    monkeypatch.setenv("AIRFLOW_CONN_DESK", json.dumps(made))
    settings["kafka_connection"] = "desk"
    return settings


# --- what connections become --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "found", "options"),
    [
        ("kafka", connection("kafka", "desk", SECRET, EXTRA), {**EXTRA, "sasl.jaas.config": JAAS}),
        (
            "kafka",
            connection("kafka", "me", "pass", {"sasl": {"mechanism": "PLAIN"}}),
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
                'required username="me" password="pass";',
            },
        ),
        # Mutual TLS: files, and the password of a key.
        (
            "kafka",
            connection(extra={"ssl": {"keystore.location": "/k.pem", "key.password": SECRET}}),
            {"ssl.keystore.location": "/k.pem", "ssl.key.password": SECRET},
        ),
        # What is no text in JSON is written as Kafka writes it.
        (
            "kafka",
            connection(extra={"check.crcs": False, "fetch.max.bytes": 7}),
            {"check.crcs": "false", "fetch.max.bytes": "7"},
        ),
        ("registry", connection("http", "me", SECRET), {"basic.auth.user.info": f"me:{SECRET}"}),
        (
            "registry",
            connection(extra={"bearer.auth.token": SECRET}),
            {"bearer.auth.token": SECRET},
        ),
        (
            "warehouse",
            connection("aws", "AKIA", SECRET, {"aws_region": "eu-west-1"}),
            {
                "aws_access_key_id": "AKIA",
                "aws_secret_access_key": SECRET,
                "aws_region": "eu-west-1",
            },
        ),
        (
            "warehouse",
            connection("wasb", "account", SECRET),
            {"azure_storage_account_name": "account", "azure_storage_account_key": SECRET},
        ),
        (
            "warehouse",
            connection(extra={"google_service_account_key": SECRET}),
            {"google_service_account_key": SECRET},
        ),
    ],
)
def test_a_connection_becomes_options(part: str, found: Any, options: dict[str, str]) -> None:
    named = NamedConnection("spillway", part, "desk")
    made = named.options(found)
    assert made == options
    variable = f"SPILLWAY_{part.upper()}__OPTIONS"
    loaded, _ = load_settings(None, environ={variable: json.dumps(made)})
    assert revealed(getattr(loaded, part).options) == options


@pytest.mark.parametrize(
    ("part", "found", "says"),
    [
        ("kafka", connection(), "neither a login nor an extra"),
        ("kafka", connection(extra=f'{{"a": "{SECRET}'), "extra is not JSON"),
        ("kafka", connection(extra=[SECRET]), "no JSON object"),
        ("kafka", connection(login="desk", extra=EXTRA), "only one of login and password"),
        ("kafka", connection(password=SECRET, extra=EXTRA), "only one of login and password"),
        ("kafka", connection("kafka", "desk", SECRET), "must say sasl.mechanism: PLAIN, SCRAM"),
        (
            "kafka",
            connection("kafka", "desk", SECRET, {"sasl.mechanism": "GSSAPI"}),
            "must say sasl.mechanism",
        ),
        (
            "kafka",
            connection("kafka", "desk", SECRET, {**EXTRA, "sasl.jaas.config": SECRET}),
            "both say sasl.jaas.config",
        ),
        ("kafka", connection(extra={"sasl.password": SECRET}), "write the connection's password"),
        ("kafka", connection(extra={"bootstrap.servers": "b:1"}), "use kafka.bootstrap_servers"),
        ("kafka", connection(extra={"ssl.key.password": [SECRET]}), "ssl.key.password: .*string"),
        ("kafka", connection(extra={"ssl.key.password": None}), "ssl.key.password: .*string"),
        ("registry", connection(extra={"password": SECRET}), "no option of the registry's"),
        ("warehouse", connection("generic", "a", SECRET), "type aws, wasb, not generic"),
        ("warehouse", connection(extra={"region_name": SECRET}), "'region_name' is no option"),
    ],
)
def test_what_cannot_be_used_is_named_without_values(part: str, found: Any, says: str) -> None:
    with pytest.raises(ConnectionProblem, match=says) as it:
        NamedConnection("spillway_london", part, "desk").options(found)
    assert str(it.value).startswith(f"[spillway_london] {part}_connection = desk: ")
    assert not seen_in("".join(traceback.format_exception(it.value)))


def seen_in(text: str) -> bool:
    """Whether a text has the secret, or a part of it, however it is written."""
    return any(part in text for part in ("riv", "bank"))


def test_the_page_s_connection_can_be_imported(tmp_path: Path) -> None:
    from airflow.secrets.local_filesystem import load_connections_dict

    [block] = [
        each for each in blocks() if each.page.name == "security.md" and each.language == "json"
    ]
    file = tmp_path / "connections.json"
    file.write_text("\n".join(block.lines))
    [(name, found)] = load_connections_dict(str(file)).items()
    made = NamedConnection("spillway", "kafka", name).options(found)
    assert made["security.protocol"] == "SASL_SSL"
    client = python_options(made, "consumer")
    assert (client["sasl_plain_username"], client["sasl_plain_password"]) == ("spillway", "...")


def _any_login_is_what_the_client_logs_in_with(user: str, password: str) -> None:
    made = kafka_options(connection("kafka", user, password, EXTRA))
    client = python_options(made, "admin")
    found = (client["sasl_plain_username"], client["sasl_plain_password"])
    assert found == (user, password)
    assert "\n" not in made["sasl.jaas.config"]


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text(
    st.sampled_from("\\\"'\n\rn0=; "), min_size=1
)
test_any_login_is_what_the_client_logs_in_with = explored(25, 2_000, _TEXT, _TEXT)(
    _any_login_is_what_the_client_logs_in_with
)


# --- who gets them ------------------------------------------------------------------------------


def test_without_a_connection_a_command_has_airflow_s_environment(settings: Settings) -> None:
    assert environment() == dict(os.environ)


def test_options_without_secrets_stay_where_they_are(
    desk: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one table some in the file, some in Airflow's environment, the rest in the connection."""
    before = {"client.id": "night", "sasl.mechanism": "PLAIN", "ssl": {"truststore.type": "PEM"}}
    monkeypatch.setenv("SPILLWAY_KAFKA__OPTIONS", json.dumps(before))
    monkeypatch.setenv("spillway_kafka__options", json.dumps({"client.rack": "b"}))
    file = tmp_path / "spillway.toml"
    file.write_text('[kafka.options]\n"fetch.max.wait.ms" = 20\n"client.id" = "file"\n')
    found = environment()
    assert "spillway_kafka__options" not in found, "of two the reader would take one"
    loaded, _ = load_settings(file, environ=found)
    assert revealed(loaded.kafka.options) == {
        **EXTRA,
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "client.id": "night",
        "client.rack": "b",
        "fetch.max.wait.ms": "20",
    }
    assert json.loads(os.environ["SPILLWAY_KAFKA__OPTIONS"]) == before, "Airflow's own is as it was"
    monkeypatch.delenv("spillway_kafka__options")
    for wrong in ("{", "[1]", '"text"'):
        monkeypatch.setenv("SPILLWAY_KAFKA__OPTIONS", wrong)
        with pytest.raises(ConnectionProblem, match="SPILLWAY_KAFKA__OPTIONS is set, too"):
            environment()


def test_each_table_has_a_connection_of_its_own(
    desk: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"conn_type": "aws", "login": "AKIA", "password": "other secret"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(store))
    desk["warehouse_connection"] = "lake"
    loaded, _ = load_settings(None, environ=environment())
    assert revealed(loaded.warehouse.options)["aws_secret_access_key"] == "other secret"
    assert revealed(loaded.kafka.options)["sasl.jaas.config"] == JAAS
    assert asyncio.run(environment_async()) == environment()


TELLS = (
    "with open({to!r}, 'a') as file:\n"
    "    print(json.dumps([sys.argv[1:], os.environ.get('SPILLWAY_KAFKA__OPTIONS')]), file=file)\n"
    "print(json.dumps({{'sessions': [{{'session': '2026-01-05', 'ended_at': 'then',"
    " 'stage': 'sealed'}}]}}))"
)
"""A program in spillway's place that keeps what it was called with."""


def test_whatever_is_started_has_them_and_no_argument_does(
    desk: Settings, fake: Callable[[str], Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    fake(TELLS.format(to=str(kept)))
    told: list[str] = []
    command = Running(["verify"], told.append)
    assert command.wait() == 0
    service = ProcessLauncher(None, tmp_path / "service")
    service.start()

    async def fired() -> Any:
        return [event async for event in SealedTrigger("2026-01-05", every_s=0.01).run()]

    assert asyncio.run(asyncio.wait_for(fired(), 30))
    until = time.monotonic() + 30
    while service.is_running():
        assert time.monotonic() < until
        time.sleep(0.02)
    calls = [json.loads(line) for line in kept.read_text().splitlines()]
    assert sorted(call[0][-1] for call in calls) == ["--json", "stream", "verify"]
    for arguments, options in calls:
        assert json.loads(options) == {**EXTRA, "sasl.jaas.config": JAAS}
        assert not seen_in(" ".join(arguments))
    note = (tmp_path / "service" / "stream.json").read_text()
    assert not seen_in(note + service.log.read_text() + repr(vars(command)) + " ".join(told))


def test_the_page_asks_kafka_with_them(
    desk: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = _Looking(None, "spillway")()._load()
    assert revealed(settings.kafka.options) == {**EXTRA, "sasl.jaas.config": JAAS}


def test_a_connection_that_is_not_there_is_named_by_whoever_needs_it(
    desk: Settings, fake: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    fake(f"open({str(ran)!r}, 'w')")
    desk["kafka_connection"] = "dekc"
    says = (
        r"\[spillway\] kafka_connection = dekc: Airflow has no connection of this name.*"
        "airflow connections import.*SPILLWAY_KAFKA__OPTIONS"
    )
    with pytest.raises(ConnectionProblem, match=says):
        Running(["verify"], print)
    with pytest.raises(LaunchFailed, match=says):
        ProcessLauncher(None, tmp_path / "service").start()
    seen = _Looking(None, "spillway")().seen()
    assert seen.problem is not None
    assert seen.problem.kind == "settings"
    assert "kafka_connection = dekc" in seen.problem.says

    async def looked() -> Any:
        return await SealedTrigger("2026-01-05")._look()

    assert asyncio.run(looked()) is None, "told, and looked for again"
    assert "kafka_connection = dekc" in capsys.readouterr().out
    assert not ran.exists(), "nothing is begun without its secrets"


def test_queries_of_one_file_share_its_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "spillway.toml"
    file.write_text('[queries.trades]\nquery = "symbol"\n[queries.pairs]\nquery = "symbol"\n')
    monkeypatch.setenv("AIRFLOW__SPILLWAY__CONFIG", str(file))
    monkeypatch.setenv("AIRFLOW__SPILLWAY__KAFKA_CONNECTION", "desk")
    monkeypatch.setenv("AIRFLOW__SPILLWAY_PAIRS__KAFKA_CONNECTION", "pairs_desk")
    found = {
        each: [(one.part, one.name) for one in connections.named_connections(each)]
        for each in ("spillway_trades", "spillway_pairs", "spillway_other")
    }
    assert found == {
        "spillway_trades": [("kafka", "desk")],
        "spillway_pairs": [("kafka", "pairs_desk")],
        "spillway_other": [],
    }


@pytest.mark.parametrize("get", [environment, lambda: asyncio.run(environment_async())])
def test_airflow_s_logs_mask_them(
    desk: Settings, get: Callable[[], Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    password = f'{uuid.uuid4()}"\\'  # one that nobody has masked before
    made = {"conn_type": "generic", "login": "desk", "password": password, "extra": EXTRA}
    monkeypatch.setenv("AIRFLOW_CONN_DESK", json.dumps(made))
    jaas = json.loads(get()["SPILLWAY_KAFKA__OPTIONS"])["sasl.jaas.config"]
    told = str(mask_logs(None, "info", {"event": f"as {jaas}, as {password}, over SASL_SSL"}))
    assert password[:8] not in told
    assert "SASL_SSL" in told, "what is harmless can be read"
