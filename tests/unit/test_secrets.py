"""A secret in every place where a user may put one is found in nothing that spillway shows."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import subprocess
import time
import traceback
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from kafka.errors import KafkaError
from pydantic import SecretStr

import spillway.cli as cli
import spillway_airflow.alerts as alerts
from spillway.engine.groups import GroupMap
from spillway.kafka.client import told
from spillway.kafka.options import OptionError, python_options
from spillway.stream.failures import beyond_mending, first_lines
from spillway.stream.source import kafka_options
from spillway_airflow.launchers import CommandLauncher, LaunchFailed
from spillway_schemas.secret import HIDDEN, hide, hide_credentials, revealed, shown
from spillway_schemas.settings import SettingsError, load_settings, values
from tests.troubles import stream_tells
from tests.unit.test_stream_tasks import SETTINGS

SECRET = "hunter2-Pa55phrase"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="spillway" password="{SECRET}";'
)
NAMES = (
    "sasl.jaas.config",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "ssl.keystore.key",
    "sasl.password",
    "sasl.jas.config",  # a typing error
    "sasl.oauthbearer.client.credentials.client.secret",
    "basic.auth.user.info",
    "some.option.of.a.plugin",
)

GOOD = [f"[kafka.options]\n'{name}' = '{SECRET}'\n" for name in NAMES] + [
    f"[kafka.options]\nsecurity.protocol = 'SSL'\nsasl.jaas.config = '''{JAAS}'''\n",
    f"[kafka.options.sasl.jaas]\nconfig = '{SECRET}'\n",
]
"""Files that are right."""

OPTIONS = f"[kafka.options]\nssl.key.password = '{SECRET}'\n"
BAD = [
    # Beside it a wrong value, a name that is none, one that is refused.
    OPTIONS + "'Fetch Size' = 1\n",
    OPTIONS + "group.id = 'x'\n",
    OPTIONS + "fetch.max.wait.ms = [20]\n",
    OPTIONS + "[state]\nslotz = 4\n",
    # The value itself of a wrong type.
    f"[kafka.options]\nssl.key.password = ['{SECRET}']\n",
    f"[kafka]\noptions = '{SECRET}'\n",
    f"[kafka]\noptions = ['{SECRET}']\n",
    f"kafka = '{SECRET}'\n",
    # In another place than it belongs.
    f"[kafka]\nssl.key.password = '{SECRET}'\n",
    f"[kafka]\npassword = '{SECRET}'\n",
    f"[warehouse]\nroot = 's3://key:{SECRET}@bucket/day'\n",
    f"[kafka]\nbootstrap_servers = 'spillway:{SECRET}@broker:9092'\n",
    f"[kafka]\nbootstrap_servers = 'SASL://spillway:{SECRET}@broker'\n",
    f"[warehouse]\nroot = ' s3://AKIA:abc/{SECRET}@bucket/day'\n",
    f"[warehouse]\nroot = 's3://AKIA:{SECRET}@abc@bucket/day'\n",
    f"[warehouse]\nroot = 's3:AKIA:{SECRET}@bucket/day'\n",
    f"[warehouse]\nroot = 'file://u:{SECRET}@host/day'\n",
    f"[warehouse]\nroot = ['s3://u:{'x' * 60}{SECRET}@host/day']\n",
    f"[kafka]\nbootstrap_servers = 'user:pa/{SECRET}@host:9092'\n",
    f"[kafka]\nbootstrap_servers = 'user:{SECRET},{SECRET}@host:9092'\n",
    f'[kafka]\nbootstrap_servers = "user:a\'{SECRET} {SECRET}@host:9092"\n',
    f"[stream]\nstart = 's3://user:{SECRET} {'x' * 60}@host:9092'\n",
    f"[metrics]\nlisten = 'user:{SECRET} x@host:9092'\n",
    # No TOML at all.
    f"[kafka.options]\nssl.key.password = {SECRET}\n",
    f"[kafka.options]\nssl.key.password = '{SECRET}\n",
    f'[kafka.options]\nssl.key.password = "{SECRET}\\q"\n',
    f"[kafka.options]\nssl.key.password '{SECRET}'\n",
    f"[kafka.options]\nssl.key.password = '{SECRET}' '{SECRET}'\n",
    f"[kafka.options]\nsasl.jaas.config = {JAAS}\n",
    f'[kafka.options]\nssl.key.password = """{SECRET}\n',
    OPTIONS + f"ssl.key.password = '{SECRET}'\n",
    f"[kafka.options]\nx = {{ssl.key.password = '{SECRET}'\n",
]
"""Files that are refused."""


def is_free_of_it(text: str) -> bool:
    return SECRET not in text and SECRET[:8] not in text and SECRET[-8:] not in text


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        cli.main(list(arguments))
    return "".join(capsys.readouterr())


@pytest.mark.parametrize("text", GOOD)
def test_settings_show_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spillway.toml"
    path.write_text(text)
    settings, _ = load_settings(path, environ={})
    assert SECRET in "".join(revealed(settings.kafka.options).values()), "it is there to be used"
    seen = [repr(settings), str(settings), settings.model_dump_json(), str(values(settings))]
    for command in (["config", "show"], ["config", "show", "--json"]):
        seen.append(printed(capsys, "--config", str(path), *command))
        assert HIDDEN in seen[-1]
    for each in seen:
        assert is_free_of_it(each)


@pytest.mark.parametrize("text", BAD)
def test_errors_of_settings_repeat_none(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spillway.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_settings(path, environ={})
    assert is_free_of_it("".join(traceback.format_exception(refused.value)))
    for command in (["config", "show"], ["status"], ["doctor", "--json"]):
        assert is_free_of_it(printed(capsys, "--config", str(path), *command))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPILLWAY_KAFKA__OPTIONS", f'{{"ssl.key.password": "{SECRET}"'),
        ("SPILLWAY_KAFKA__OPTIONS", f'{{"ssl.key.password": ["{SECRET}"]}}'),
        ("SPILLWAY_KAFKA__OPTIONS", SECRET),
        ("SPILLWAY_KAFKA__OPTIONS", f'"{SECRET}"'),
        ("SPILLWAY_KAFKA__OPTION", SECRET),
        ("SPILLWAY_KAFKA_OPTIONS", SECRET),
        ("SPILLWAY_KAFKA__PASSWORD", SECRET),
        ("SPILLWAY_WAREHOUSE__ROOT", f"s3://key:{SECRET}@bucket"),
    ],
)
def test_errors_of_the_environment_repeat_none(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(None, environ={variable: value})
    assert is_free_of_it("".join(traceback.format_exception(refused.value)))


@pytest.mark.parametrize(
    "flag",
    [
        f"kafka.options.ssl.key.password={SECRET}",
        f"kafka.options={SECRET}",
        f"kafka.password={SECRET}",
        f"ssl.key.password {SECRET}",
        f"s3://me:{SECRET}@bucket",
    ],
)
def test_errors_of_flags_repeat_none(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_free_of_it(printed(capsys, "--set", flag, "config", "show"))


def test_what_the_stream_hands_to_spark_shows_none() -> None:
    options = kafka_options("h:1", ["a"], {"sasl.jaas.config": SecretStr(JAAS)})
    assert is_free_of_it(repr(options))
    assert SECRET in "".join(revealed(options).values())
    assert SECRET.encode() in pickle.dumps(options), "a task can use it"
    assert is_free_of_it(repr(SETTINGS) + repr(GroupMap.initial(2, 1)))


def test_texts_of_libraries_are_told_without() -> None:
    options = {"sasl.jaas.config": JAAS, "client.id": "spillway", "fetch.max.wait.ms": "2000"}
    for text in (JAAS, f"bad value {JAAS!r}", f"Value not specified for key '{SECRET}'"):
        assert is_free_of_it(hide(text, options))
        assert is_free_of_it(told(KafkaError(text), options))
    harmless = "client spillway of org.apache.kafka.common.security.plain.PlainLoginModule: 2000 ms"
    assert hide(harmless, options) == harmless
    two = {"sasl.jaas.config": f"x required password=my {SECRET};"}
    assert is_free_of_it(hide(f"Value not specified for key '{SECRET}' in JAAS config", two))


def test_of_two_secrets_the_longer_is_looked_for_first() -> None:
    options = {"a.password": "river", "b.password": "riverbank"}
    assert hide("no riverbank", options) == f"no {HIDDEN}"


def test_a_secret_is_known_as_python_writes_it_and_as_java_escapes_it() -> None:
    odd = "ab\tcd\tef"
    assert hide(f"no {odd!r}", {"x.password": odd}) == f"no '{HIDDEN}'"
    escaped = {"sasl.jaas.config": 'X required password="a\\"b\\"c\\"d\\"e";'}
    assert hide('no "river"', escaped) == 'no "river"'
    # Whole, with what is too short to be a word of it, and with Java's own escapes.
    octal = {"sasl.jaas.config": 'X required username="ann" password="a\\"bank\\101";'}
    assert hide('it said a"bankA to ann', octal) == "it said (hidden) to ann"
    words = {"sasl.jaas.config": 'X required password="riv\\er bank-side";'}
    assert hide("no river", words) == f"no {HIDDEN}"
    long = {"sasl.jaas.config": 'X required password="riv\\er-bank";'}
    assert hide("no river-bank", long) == f"no {HIDDEN}"


def test_words_of_four_letters_may_be_secrets() -> None:
    assert hide("a 1234 b", {"x.pin": "1234"}) == f"a {HIDDEN} b"
    assert hide("a 123 b", {"x.pin": "123"}) == "a 123 b"


def test_an_error_of_a_library_is_printed_and_kept_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spillway.toml"
    path.write_text(f"[kafka.options]\nsasl.jaas.config = '''{JAAS}'''\n")

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(f"could not parse {JAAS}")

    monkeypatch.setattr("spillway.topics.look", fails)
    text = printed(capsys, "--config", str(path), "topics")
    assert "could not parse" in text
    kept = (tmp_path / "var" / "last-error.txt").read_text()
    assert "could not parse" in kept
    assert is_free_of_it(text + kept)


@pytest.mark.parametrize(
    "options",
    [
        {"ssl.truststore.location": "/s", "ssl.truststore.type": SECRET},
        {"sasl.jaas.config": f"module required password={SECRET}"},
        {"fetch.max.wait.ms": SECRET},
        {"check.crcs": SECRET},
        {"ssl.unheard.of": SECRET},
    ],
)
def test_options_that_python_cannot_have_are_named_without_values(options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as refused:
        python_options(options, "consumer")
    assert is_free_of_it(str(refused.value))


def test_only_harmless_names_are_shown() -> None:
    options = dict.fromkeys(
        (*NAMES, "security.protocol", "fetch.max.wait.ms", "ssl.password.ms"), "12"
    )
    open_ = {name for name, value in shown(options).items() if value != HIDDEN}
    assert open_ == {"security.protocol", "fetch.max.wait.ms"}


def test_what_is_no_number_is_not_shown_as_a_span_or_a_size() -> None:
    options = {"fetch.max.wait.ms": SECRET, "max.bytes": f"5{SECRET}", "x.bytes": "9" * 40}
    assert set(shown(options).values()) == {HIDDEN}
    assert shown({"linger.ms": "-1"}) == {"linger.ms": "-1"}
    assert is_free_of_it(hide(f"no {SECRET}", options))


def test_credentials_in_a_harmless_value_are_not_shown() -> None:
    assert shown({"client.id": f"me:{SECRET}@host"}) == {"client.id": f"{HIDDEN}@host"}


@pytest.mark.parametrize("spelt", [repr, ascii, json.dumps])
def test_a_secret_is_known_as_python_and_json_write_it(spelt: Callable[[str], str]) -> None:
    secret = 'n\u00e9"e\\x\u2028\ty'
    assert hide(f"no {spelt(secret)[1:-1]}!", {"x.password": secret}) == f"no {HIDDEN}!"


def test_credentials_of_an_address_are_hidden() -> None:
    text = f"s3://key:{SECRET}@bucket/x and user:{SECRET}@host:1"
    assert is_free_of_it(hide_credentials(text))
    assert hide_credentials("it is @ noon; me@") == "it is @ noon; me@"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot read s3://AKIA:abc/defS@bucket/x:", f"cannot read s3://{HIDDEN}@bucket/x:"),
        ("'s3://token@bucket/x'", f"'s3://{HIDDEN}@bucket/x'"),
        ("'user:pa/ss'wo\"rd@host:9092' is none", f"'{HIDDEN}@host:9092' is none"),
        ("at=user:p@ss@[::1]:9092", f"at={HIDDEN}@[::1]:9092"),
        ("user:p://x@host", f"{HIDDEN}@host"),
        ("user:pass@host?a=me@", f"{HIDDEN}@host?a=me@"),
        ("a:b@h,c:d@i", f"{HIDDEN}@i"),
        # No credentials.
        ("file:///home/me@work/x", "file:///home/me@work/x"),
        ('File "/home/me@work/x.py", line 3', 'File "/home/me@work/x.py", line 3'),
        ("org.apache.kafka.Thing@1a2b3c", "org.apache.kafka.Thing@1a2b3c"),
        ("x:y@", "x:y@"),
    ],
)
def test_credentials_end_with_the_last_at_of_a_word(text: str, shown: str) -> None:
    assert hide_credentials(text) == shown


def test_long_texts_are_looked_through_once() -> None:
    began = time.process_time()
    for text in (
        "'x," * 300_000 + "@h",
        "a:" * 300_000,
        "x@" * 300_000,
        ":@ " * 300_000,
        "@" * 300_000,
    ):
        hide_credentials(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("root", ["file:///data/me@work", "/data/me@work", "data/a:b@c"])
def test_a_folder_may_have_an_at_in_its_name(root: str) -> None:
    settings, _ = load_settings(None, {"warehouse.root": root}, environ={})
    assert settings.warehouse.root.endswith(root.removeprefix("file://"))


def test_a_secret_is_hidden_before_anything_is_cut(tmp_path: Path) -> None:
    options = {"sasl.jaas.config": SecretStr(JAAS)}
    for gap in range(570, 600):
        error = RuntimeError(f"KafkaException: {'x' * gap} password={SECRET} is bad")
        for text in (
            first_lines(error, options),
            str(beyond_mending(error, 0, tmp_path, options)),
        ):
            assert not any(SECRET[:n] in text for n in range(4, len(SECRET)))
    lost = RuntimeError(f"data may have been lost: {SECRET}\nmore")
    assert is_free_of_it(str(beyond_mending(lost, 0, tmp_path, options)))
    away = RuntimeError(f"java.net.ConnectException: {SECRET} was refused")
    told_of = str(beyond_mending(away, 1e6, tmp_path, options))
    assert told_of.startswith("Kafka has been away")
    assert is_free_of_it(told_of)


def test_troubles_of_the_stream_are_hidden_before_names_are_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "eyJhbGciOiJIUzI1NiJ9eyJzdWIiOiJh-b3JkZXIx-Zm9vYmFy.c2lnbmF0dXJl"
    stream_tells(monkeypatch, f"bad token {token}")
    path = tmp_path / "spillway.toml"
    path.write_text(f"[kafka.options]\nsasl.oauthbearer.token = '{token}'\n")
    text = printed(capsys, "--config", str(path), "stream")
    assert f"bad token {HIDDEN}" in text
    assert token[:8] not in text


# --- Airflow's configured commands -----------------------------------------------------------

TOKEN = f"Authorization:{SECRET}"


def test_an_alert_command_is_told_without_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (f"/no/such/program {TOKEN}", f"ls {TOKEN}", f"ls '{TOKEN}"):
        monkeypatch.setattr(alerts, "setting", lambda _, command=command: command)
        with pytest.raises(RuntimeError, match="alert_command") as failed:
            asyncio.run(alerts.tell("late"))
        assert is_free_of_it(str(failed.value))


def test_a_launchers_command_is_told_without_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = CommandLauncher(f"ls {TOKEN}", f"/no/such {TOKEN}", f"echo {TOKEN}")
    for each in (launcher.start, launcher.stop):
        with pytest.raises(LaunchFailed) as failed:
            each()
        assert is_free_of_it("".join(traceback.format_exception(failed.value)))

    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired(["ls", TOKEN], 1)

    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(LaunchFailed) as failed:
        launcher.start()
    assert is_free_of_it("".join(traceback.format_exception(failed.value)))


def test_json_shows_what_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spillway.toml"
    path.write_text(OPTIONS + "fetch.max.wait.ms = 20\n")
    found = json.loads(printed(capsys, "--config", str(path), "config", "show", "--json"))
    assert found["kafka.options"]["value"] == {
        "ssl.key.password": HIDDEN,
        "fetch.max.wait.ms": "20",
    }


def in_small_letters(text: str) -> str:
    """As some tools write what a URL escapes."""
    return re.sub("%..", lambda found: found[0].lower(), quote(text, safe=""))


@pytest.mark.parametrize("given", [str, quote, in_small_letters])
def test_a_signature_of_a_url_is_hidden_as_the_url_has_it(given: Callable[[str], str]) -> None:
    signature = "Zm9v+YmFy/c2VjcmV0MTIzNDU2Nzg5MA=="
    token = f"?sv=2022-11-02&sig={given(signature)}&se=2030"
    options = {"azure_storage_sas_token": SecretStr(token)}
    for spelt in (signature, quote(signature, safe=""), quote_plus(signature)):
        said = hide(f"GET /c?comp=list&sig={spelt}&timeout=30 failed", options)
        assert said == "GET /c?comp=list&sig=(hidden)&timeout=30 failed"


def test_a_login_is_hidden_as_http_sends_it() -> None:
    header = b64encode(b"ann:river-bank").decode()
    options = {"basic.auth.user.info": SecretStr("ann:river-bank")}
    assert hide(f"sent 'Authorization: Basic {header}'", options).endswith("Basic (hidden)'")
