"""Settings: order of sources, origins, and messages that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from spillway_schemas.secret import revealed
from spillway_schemas.settings import (
    RESERVED_KAFKA_OPTIONS,
    SettingsError,
    catalogue,
    load_settings,
    values,
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spillway.toml"
    path.write_text(text)
    return path


def problems(path: Path | None = None, overrides=None, environ=None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, overrides or {}, environ or {})
    return str(caught.value).splitlines()


def test_later_sources_win_and_every_value_knows_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path, "[state]\nslots = 2\ngroups = 64\n[spill]\nfraction = 0.5\n")
    environ = {"SPILLWAY_STATE__SLOTS": "3", "SPILLWAY_STATE__GROUPS": "128", "HOME": "/x"}
    settings, origins = load_settings(path, {"state.slots": 4, "stream.start": None}, environ)
    assert (settings.state.slots, settings.state.groups, settings.spill.fraction) == (4, 128, 0.5)
    assert settings.spill.threshold == 0.8
    assert str(origins["state.slots"]) == "--set state.slots"
    assert str(origins["state.groups"]) == "SPILLWAY_STATE__GROUPS"
    assert str(origins["spill.fraction"]) == f"{path}:5"
    assert origins["spill.threshold"].source == "default"
    assert origins["stream.start"].source == "default"
    assert list(origins) == [setting.name for setting in catalogue()] == list(values(settings))


def test_no_file_means_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings, origins = load_settings(None, {}, {})
    assert {origin.source for origin in origins.values()} == {"default"}
    assert settings.kafka.bootstrap_servers == "127.0.0.1:19092"
    assert settings.state.groups == 512
    assert settings.query == "symbol"
    write(tmp_path, "[state]\nslots = 7\n")
    assert load_settings(None, {}, {})[0].state.slots == 7


def test_paths_are_absolute_and_belong_to_where_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    path = write(home, 'query = "q.toml"\n[warehouse]\nroot = "w"\n')
    settings, _ = load_settings(path, {"state.root": "s"}, {})
    assert settings.warehouse.root == str(home / "w")
    assert settings.kafka.data_dir == str(home / "var/kafka")
    assert settings.query == str(home / "q.toml")
    assert settings.state.root == str(here / "s")
    uri, _ = load_settings(path, {"warehouse.root": "s3://bucket/w"}, {})
    assert uri.warehouse.root == "s3://bucket/w"


def test_kafka_options_merge_key_by_key_however_they_are_written(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[kafka.options]\nsecurity.protocol = "SSL"\n"fetch.max.wait.ms" = 20\ncheck.crcs = true\n',
    )
    environ = {
        "SPILLWAY_KAFKA__OPTIONS": '{"fetch.max.wait.ms": "30"}',
        "SPILLWAY_KAFKA__OPTIONS__RETRIES": "5",
    }
    settings, origins = load_settings(path, {"kafka.options": {"retries": "6"}}, environ)
    assert revealed(settings.kafka.options) == {
        "security.protocol": "SSL",
        "fetch.max.wait.ms": "30",
        "check.crcs": "true",
        "retries": "6",
    }
    assert origins["kafka.options"].source == "flag"


SET_BY_US = {
    "allow.auto.create.topics",
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.idempotence",
    "group.id",
    "isolation.level",
    "transactional.id",
}
"""What readers and writers set whatever the options say: there they would have no effect."""


@pytest.mark.parametrize("name", sorted(RESERVED_KAFKA_OPTIONS.keys() | SET_BY_US))
def test_kafka_options_that_would_break_exactness_are_refused(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, f'[kafka.options]\n"{name}" = "x"\n')
    (line,) = problems(path)
    assert line.startswith(f"{path}:1: kafka.options: {name} cannot be set here: ")


def test_unknown_keys_are_refused_in_every_source(tmp_path: Path) -> None:
    path = write(tmp_path, "[state]\nslotz = 3\n\n[spil]\nx = 1\n")
    environ = {"SPILLWAY_STATE__SLOT": "4", "SPILLWAY_STATE_SLOTS": "4", "SPILLWAY_FAILPOINT": "a"}
    assert set(problems(path, {"stream.strt": 1}, environ)) == {
        f"{path}:2: there is no setting state.slotz; did you mean state.slots?",
        f"{path}:4: there is no setting spil; did you mean spill?",
        "SPILLWAY_STATE__SLOT: there is no setting state.slot; did you mean state.slots?",
        "SPILLWAY_STATE_SLOTS: not a setting; two underscores are needed: SPILLWAY_STATE__SLOTS",
        "--set stream.strt: there is no setting stream.strt; did you mean stream.start?",
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("state.groups", 500, "a power of two is needed, e.g. 256 or 512 (got 500)"),
        ("state.groups", 0, "must be at least 1 (got"),
        ("state.slots", "two", "a whole number is needed (got 'two')"),
        ("state.budget_bytes", "1 elephant", "such as 512MiB or 2GiB (got '1 elephant')"),
        ("state.budget_bytes", "0", "must be at least 1 (got"),
        ("spill.threshold", 0, "must be greater than 0 (got"),
        ("spill.threshold", 1.1, "must be at most 1 (got"),
        ("spill.fraction", float("nan"), "finite"),
        ("spill.victims", "biggest", "'inactive-then-productivity'"),
        ("spill.traced_rows", 1, "a sample needs 2 rows or more (got 1)"),
        ("stream.start", "2026-01-05T09:30:00", "a time with its offset"),
        ("stream.start", "yesterday", "previous-close, earliest, latest"),
        ("stream.max_rows_per_epoch", 0, "must be at least 1 (got"),
        ("session.boundary", "bell", "must be 'command' or 'calendar' (got"),
        ("kafka.bootstrap_servers", "localhost", "is not host:port"),
        ("kafka.bootstrap_servers", "a:1,b:99999", "'b:99999' is not host:port"),
        ("kafka.options", {"Fetch Size": "1"}, "is no name of the Java client"),
        ("warehouse.root", " ", "an empty path"),
    ],
)
def test_wrong_values_say_what_is_allowed(name: str, value: object, message: str) -> None:
    (line,) = problems(None, {name: value})
    assert line.startswith(f"--set {name}: ")
    assert line.count(name) == 1
    assert message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[state\n", ":1: not valid TOML"),
        ("[state]\nslots = 1\nslots = 2\n", ":3: not valid TOML"),
        ("[state]\nslots = \n", ":2: not valid TOML"),
    ],
)
def test_a_broken_file_names_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert problems(path)[0].startswith(f"{path}{message}")


def test_a_missing_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    assert problems(tmp_path / "no.toml") == [f"{tmp_path / 'no.toml'}: there is no such file"]


def test_a_table_in_the_environment_is_json() -> None:
    (line,) = problems(None, {}, {"SPILLWAY_KAFKA__OPTIONS": '{"a'})
    assert line.startswith("SPILLWAY_KAFKA__OPTIONS: a table is written as a JSON object: ")


def test_budgets_are_written_with_units_and_default_to_a_part_of_memory() -> None:
    settings, _ = load_settings(None, {"state.budget_bytes": "512MiB"}, {})
    assert settings.state.budget_bytes == 512 << 20
    many, _ = load_settings(None, {"state.slots": 1024}, {})
    assert many.state.budget_bytes <= 1 << 30
    few, _ = load_settings(None, {"state.slots": 1}, {})
    assert many.state.budget_bytes <= few.state.budget_bytes <= 1 << 30


def test_every_setting_says_its_unit_and_why() -> None:
    for setting in catalogue():
        assert setting.description, setting.name
        assert setting.unit, setting.name
        assert len(setting.why) > 20, setting.name
        assert setting.env == "SPILLWAY_" + setting.name.replace(".", "__").upper()


def test_settings_cannot_be_changed_after_loading() -> None:
    settings, _ = load_settings(None, {}, {})
    with pytest.raises(ValueError, match="frozen"):
        settings.state.slots = 3  # type: ignore[misc]
