"""Several queries in one settings file: each with its own warehouse, state, figures and checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spillway.cli import main
from spillway.commands import given
from spillway.commands.terminal import told
from spillway.doctor.beside import beside, judge_budgets, judge_shared
from spillway.doctor.machine import _bytes_below
from spillway.storage import folder, private
from spillway.stream.service import Stream
from spillway_schemas.settings import (
    Settings,
    SettingsError,
    WarehouseSettings,
    load_settings,
    named_queries,
)
from tests.report_journal import DAY, fill_journal, make_day, open_warehouse

FILE = """
[warehouse]
root = "w"
[state]
root = "state"
slots = 2
budget_bytes = "1MiB"
[queries.trades]
query = "trades.toml"
state.slots = 3
[queries.quotes]
query = "symbol"
metrics.listen = "127.0.0.1:9999"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spillway.toml"
    path.write_text(FILE)
    return path


def of(file: Path, query: str | None, environ: dict[str, str] | None = None) -> Settings:
    return load_settings(file, {"query": query}, environ or {})[0]


def refused(file: Path, query: str | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as error:
        of(file, query, environ)
    return str(error.value)


def test_each_has_what_is_said_of_it_and_of_all(file: Path) -> None:
    assert named_queries(file) == ["trades", "quotes"]
    here = file.parent
    trades, quotes = (of(file, name) for name in ("trades", "quotes"))
    assert (trades.name, trades.query) == ("trades", str(here / "trades.toml"))
    assert (quotes.name, quotes.query) == ("quotes", "symbol")
    assert (trades.state.slots, quotes.state.slots) == (3, 2)
    assert (trades.metrics.listen, quotes.metrics.listen) == ("", "127.0.0.1:9999")
    assert trades.warehouse.root == str(here / "w/queries/trades")
    assert quotes.state.root == str(here / "state/queries/quotes")


def test_a_query_s_own_goes_before_all_but_flags(file: Path) -> None:
    environ = {"SPILLWAY_STATE__SLOTS": "5", "SPILLWAY_WAREHOUSE__ROOT": "/srv/w"}
    assert of(file, "trades", environ).state.slots == 3
    assert of(file, "quotes", environ).state.slots == 5
    assert of(file, "trades", environ).warehouse.root == "/srv/w/queries/trades"
    found, origins = load_settings(file, {"query": "trades", "state.slots": "7"}, {})
    assert (found.state.slots, str(origins["state.slots"])) == (7, "--set state.slots")
    assert str(origins["query"]) == f"{file}:9"
    file.write_text(FILE.replace("state.slots = 3", 'warehouse.root = "own"'))
    assert of(file, "trades").warehouse.root == str(file.parent / "own")


def test_folders_of_each_are_below_that_of_all_in_an_object_store(file: Path) -> None:
    options = 'options = { aws_region = "eu-1", timeout = "9s" }'
    text = FILE.replace('root = "w"', f'root = "s3://tables/w/"\n{options}')
    file.write_text(f'{text}warehouse.options.timeout = "5s"\n')
    trades, quotes = (of(file, name).warehouse for name in ("trades", "quotes"))
    assert (trades.root, quotes.root) == (
        "s3://tables/w/queries/trades",
        "s3://tables/w/queries/quotes",
    )
    assert folder(trades.root, trades.options).path("x") == "s3://tables/w/queries/trades/x"

    def said(place: WarehouseSettings) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in place.options.items()}

    assert said(trades) == {"aws_region": "eu-1", "timeout": "9s"}
    assert said(quotes) == {"aws_region": "eu-1", "timeout": "5s"}
    assert of(file, "trades").state.root == str(file.parent / "state/queries/trades")
    every = [of(file, name) for name in ("trades", "quotes")]
    assert [check.status for check in judge_shared(every)] == ["ok"]


@pytest.mark.parametrize("how", ["flag", "environment", "file"])
def test_a_name_chooses(how: str, file: Path) -> None:
    if how == "file":
        file.write_text(f'query = "quotes"\n{FILE}')
    environ = {"SPILLWAY_QUERY": "quotes"} if how == "environment" else {}
    assert of(file, "quotes" if how == "flag" else None, environ).name == "quotes"


def test_a_query_beside_the_named_ones_is_where_it_was(file: Path) -> None:
    """A file that gets its first `[queries.NAME]` leaves what there is where it is."""
    file.write_text(f'query = "symbol_minute"\n{FILE}')
    own = of(file, None)
    assert (own.name, own.warehouse.root) == ("", str(file.parent / "w"))
    assert of(file, "symbol").warehouse.root == str(file.parent / "w")


def test_what_is_wrong_is_said(file: Path) -> None:
    assert refused(file) == (
        f"{file}: there are several queries: name one, --query trades or quotes"
    )
    assert refused(file, "quote") == "there is no query 'quote'; there are: trades, quotes"
    for wrong, says in (
        ("[queries]\nx = 1", f"{file}:1: write a table for each: [queries.NAME]"),
        (
            "[queries.Trades]\nquery = 'x'",
            f"{file}:1: 'Trades' is no name of a query: use up to 40",
        ),
        ("[queries.'a/b']\nquery = 'x'", "'a/b' is no name of a query"),
        ("[queries.trades]", f'{file}:1: say which query it is: query = "trades.toml"'),
        (
            "[queries.trades]\nquery = 'symbol'\nstate.slot = 3",
            f"{file}:3: there is no setting state.slot; did you mean state.slots?",
        ),
        (
            "[queries.trades]\nquery = 'symbol'\nstate.slots = 'x'",
            f"{file}:3: state.slots: ",
        ),
    ):
        file.write_text(wrong)
        assert says in refused(file, "trades")


# --- side by side -----------------------------------------------------------------------------


def test_folders_and_ports_are_their_own(file: Path) -> None:
    every = [of(file, name) for name in ("trades", "quotes")]
    assert [(c.name, c.status) for c in judge_shared(every)] == [("side by side", "ok")]
    file.write_text(
        FILE.replace("[queries.trades]", '[metrics]\nlisten = "127.0.0.1:9999"\n[queries.trades]')
    )
    every = [of(file, name) for name in ("trades", "quotes")]
    [check] = judge_shared(every)
    assert (check.status, check.what) == (
        "fail",
        "trades and quotes have one metrics.listen: 127.0.0.1:9999",
    )
    assert beside(every[:1]) == []
    assert {c.name for c in beside(every)} == {"side by side", "budgets together"}


def test_budgets_are_added_up() -> None:
    mib = 1 << 20
    fits = judge_budgets({"trades": 3 * mib, "quotes": 2 * mib}, 5 * mib)
    assert (fits.status, fits.what) == (
        "ok",
        "trades 3.00 MiB + quotes 2.00 MiB = 5.00 MiB of 5.00 MiB",
    )
    assert judge_budgets({"trades": 3 * mib, "quotes": 2 * mib}, 5 * mib - 1).status == "warn"


def test_state_of_named_queries_is_not_the_other_s(tmp_path: Path) -> None:
    private(str(tmp_path / "state/queries/trades"))
    (tmp_path / "state/queries/trades/file").write_bytes(b"12345")
    (tmp_path / "state/own").write_bytes(b"123")
    assert _bytes_below(tmp_path / "state") == 3
    assert _bytes_below(tmp_path / "state/queries/trades") == 5


# --- the commands -----------------------------------------------------------------------------


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as it:
        main(arguments)
    assert isinstance(it.value.code, int)
    return it.value.code


@pytest.fixture
def two(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`quotes` has a journal, `trades` none yet."""
    monkeypatch.setenv("SPILLWAY_VAR", str(file.parent / "var"))
    monkeypatch.setenv("SPILLWAY_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "160")
    (file.parent / "trades.toml").write_text(
        '[streams.a]\nschema = "stock"\n[streams.b]\nschema = "volume"\n'
        '[join]\ninputs = ["a", "b"]\non = ["symbol"]\n'
    )
    fill_journal(open_warehouse(str(file.parent / "w/queries/quotes")), make_day(5).entries)
    return file


def test_status_has_a_line_for_each(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--config", str(two), "status") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:4] == ["query", "session", "rows", "in"]
    assert lines[1][:3] == ["quotes", DAY, "open"]
    assert lines[2] == ["trades:", "nothing", "yet:", "start", "its", "stream"]
    assert run("--config", str(two), "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], bool(each["status"])) for each in found] == [
        ("trades", False),
        ("quotes", True),
    ]
    one = ["--config", str(two), "--query", "quotes", "status", "--json"]
    assert run(*one) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == found[1]["status"]["epoch"]
    assert run("--config", str(two), "--query", "trades", "status") == 4


@pytest.mark.parametrize("words", [["status"], ["status", "--json"]])
def test_status_of_all_ends_as_that_of_each_where_none_is_seen(
    words: list[str], two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that has nothing yet, or cannot be seen, makes no failure of those that are seen."""
    shutil.rmtree(two.parent / "w")
    assert run("--config", str(two), *words) == 4
    assert capsys.readouterr().out.count("nothing yet: start its stream") == 2
    wrong = two.read_text().replace("[queries.quotes]", "[queries.quotes]\nspill.fraction = 'x'")
    two.write_text(wrong)
    assert run("--config", str(two), *words) == 3, "not for want of a warehouse alone"


def test_secrets_of_each_are_kept(two: Path) -> None:
    text = two.read_text()
    for name in ("trades", "quotes"):
        keys = (
            f'warehouse.options.aws_secret_access_key = "of-{name}"\n'
            f'registry.options."basic.auth.user.info" = "{name}:at-{name}"\n'
        )
        text = text.replace(f"[queries.{name}]\n", f"[queries.{name}]\n{keys}")
    two.write_text(text)
    given.before_the_command(two, [])
    for each in (given.each_settings, given.named_settings):
        assert [found.name for found in given.readable(each())] == ["trades", "quotes"]
        assert told("of-trades, of-quotes") == "(hidden), (hidden)"
        assert "at-" not in told("trades:at-trades, quotes:at-quotes")
    given.settings(query="quotes")
    assert told("a@b of-quotes, of-trades") == "a@b (hidden), (hidden)"
    given.before_the_command(None, [])


def test_what_is_of_one_query_asks_for_its_name(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["maintain"],
        ["status", "--groups", "3"],
        ["cleanup", "--session", "2026-01-05"],
    ):
        assert run("--config", str(two), *words) == 2
        assert "several queries: name one, --query trades or quotes" in capsys.readouterr().err


def test_the_last_error_of_each_is_kept(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams run side by side: the error of one does not go over that of another, and one of a
    command that is of all is of none."""

    def fails(found: Settings, *_: object, **__: object) -> None:
        raise RuntimeError(f"a bug of {found.name}")

    monkeypatch.setattr("spillway.topics.look", fails)
    kept = [two.parent / "var" / where / "last-error.txt" for where in ("queries/quotes", "")]
    assert run("--config", str(two), "--query", "quotes", "topics") == 3
    assert "a bug of quotes" in kept[0].read_text()
    assert not kept[1].exists()
    monkeypatch.setattr("spillway.commands.given.named_settings", lambda **_: fails(Settings()))
    assert run("--config", str(two), "status") == 3
    assert "a bug of \n" in kept[1].read_text()
    assert "a bug of quotes" in kept[0].read_text()


def test_the_doctor_looks_at_each_and_at_all(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--config", str(two), "doctor", "--json")
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert names[:2] == ["side by side", "budgets together"]
    assert {"trades: tables", "quotes: tables", "trades: query"} <= set(names)
    run("--config", str(two), "--query", "quotes", "doctor", "--json")
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert names[:2] == ["side by side", "budgets together"]
    assert "tables" in names


def test_a_mistake_in_one_hides_no_other(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one that was not asked for it is no failure: its own stream is refused, and no other."""

    def checked(*options: str) -> dict[str, str]:
        run("--config", str(two), *options, "doctor", "--json")
        return {each["name"]: each["status"] for each in json.loads(capsys.readouterr().out)}

    wrong = two.read_text().replace("[queries.trades]", "[queries.trades]\nspill.fraction = 'x'")
    two.write_text(wrong)
    assert run("--config", str(two), "status", "--json") == 0
    trades, quotes = json.loads(capsys.readouterr().out)
    assert (trades["name"], trades["status"]) == ("trades", None)
    assert trades["problem"].startswith(f"{two}:")
    assert "a number is needed" in trades["problem"]
    assert quotes["status"]["session"] == DAY
    every, one = checked(), checked("--query", "quotes")
    assert (every["trades: settings"], one["trades: settings"]) == ("fail", "warn")
    assert "quotes: tables" in every
    assert not {"trades: tables", "quotes: settings"} & every.keys()
    assert "tables" in one
    two.write_text(wrong.replace("[queries.quotes]", "[queries.quotes]\nspill.fraction = 'x'"))
    for command in ("status", "doctor"):
        assert run("--config", str(two), command) == 2
        assert f"{two}:" in capsys.readouterr().err


def test_a_mistake_in_one_does_not_keep_the_other_from_its_start(
    two: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside one that is right its own start is still refused: their folders must differ."""
    for name in ("allocators.few_arenas", "allocators.one_allocator"):
        monkeypatch.setattr(f"spillway.{name}", lambda: True)
    monkeypatch.setattr("spillway.stream.interrupts.stop_on_signals", lambda _: None)
    monkeypatch.setattr("spillway.doctor.check_all", lambda *_, **__: [])
    started = []
    monkeypatch.setattr(Stream, "run", lambda self: started.append(self.settings.name))
    right = two.read_text()
    stream = ("--config", str(two), "--query", "trades", "stream", "--quiet")
    two.write_text(right.replace("[queries.quotes]", "[queries.quotes]\nstate.slots = 'x'"))
    assert run(*stream) == 0
    assert started == ["trades"]
    assert run("--config", str(two), "--query", "quotes", "stream") == 2
    assert f"{two}:" in capsys.readouterr().err
    one_root = f"warehouse.root = '{two.parent / 'one'}'"
    for name in ("trades", "quotes"):
        right = right.replace(f"[queries.{name}]", f"[queries.{name}]\n{one_root}")
    two.write_text(right)
    assert run(*stream) == 3
    assert "have one warehouse.root" in " ".join(capsys.readouterr().out.split())
    assert started == ["trades"]
