"""The command line's exit codes, as other programs tell cases apart by them."""

from __future__ import annotations

import errno
import json
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from spillway.cli import main
from spillway.doctor import check_all
from spillway.jars import JarError, JavaError
from spillway.kafka import broker
from spillway.kafka.options import OptionError
from spillway.metrics.server import CannotListen
from spillway.private import NotPrivate
from spillway.protocol.driver import End
from spillway.storage import StorageError
from spillway.stream.driver import Ended
from spillway.stream.service import Stream
from spillway.verify.proof import InputGone, NotCleaned
from spillway.versions import formats
from spillway_schemas.query import Query, load_query
from spillway_schemas.settings import load_settings
from tests.report_journal import DAY, fill_journal, make_day, open_warehouse


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of every command."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    return ["--set", f"warehouse.root={tmp_path / 'w'}"]


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as it:
        main(arguments)
    assert isinstance(it.value.code, int)
    return it.value.code


def main_ok(*arguments: str) -> None:
    assert code(*arguments) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["rebalance"],
        ["status"],
        ["seal", "--session", DAY],
        ["seal", "--withdraw", "--session", DAY],
        ["cleanup", "--session", DAY],
        ["verify", "--session", DAY],
    ],
    ids=" ".join,
)
def test_nothing_yet_is_an_exit_code_of_its_own(
    tmp_path: Path, settings: list[str], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(*settings, *command) == 4
    assert "there is no warehouse" in capsys.readouterr().err
    open_warehouse(str(tmp_path / "w"))
    assert code(*settings, *command) == 4
    assert capsys.readouterr().err.endswith(
        f"spillway: the journal of {tmp_path}/w is empty: start `spillway stream`, or name another "
        "warehouse.root\n"
    )
    assert not (tmp_path / "var" / "last-error.txt").exists(), "nothing is wrong"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rebalance", "--policy", "nonsense"], "unknown policy 'nonsense'"),
        (["--set", "state.slots=none", "rebalance"], "state.slots"),
        (["--query", "nope", "status"], "'nope'"),
    ],
)
def test_wrong_usage_is_told_before_there_is_a_warehouse(
    settings: list[str], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(*settings, *arguments) == 2
    assert says in capsys.readouterr().err


def test_a_start_that_is_refused_makes_nothing(
    tmp_path: Path, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the place would be tied to the query of a start that came to nothing."""
    kafka = ["--set", "kafka.bootstrap_servers=127.0.0.1:1", "--set", "metrics.listen="]
    assert code(*settings, *kafka, "stream", "--session", DAY) == 3
    assert "nothing listens at 127.0.0.1:1" in capsys.readouterr().out
    assert not (tmp_path / "w").exists()


def test_another_query_is_refused_before_anything_is_started(
    tmp_path: Path, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fill_journal(open_warehouse(str(tmp_path / "w")), make_day(3, query="another").entries)
    assert code(*settings, "stream", "--until-sealed", DAY) == 2
    said = capsys.readouterr()
    assert f"the query has changed in mid-session: {DAY} has begun" in said.err
    assert f"spillway stream --until-sealed {DAY} --as-begun" in said.err
    assert said.out == "", "nothing was checked and no Spark was started"
    checks = {
        each.name: each
        for each in check_all(load_settings(None, dict([settings[1].split("=", 1)]))[0])
    }
    assert checks["tables"].status == "fail"
    assert "the query has changed in mid-session" in checks["tables"].what


def test_a_session_is_ended_by_the_query_that_it_began_by(
    tmp_path: Path,
    settings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the settings name by then, and even when that cannot be read."""
    own = load_query("symbol_minute")
    made = make_day(3, query=own.fingerprint)
    made.entries[0] = made.entries[0].model_copy(update={"text": own.text})
    fill_journal(open_warehouse(str(tmp_path / "w")), made.entries)
    given: list[Query] = []

    class Caught(Stream):
        def is_done(self) -> bool:
            given.append(self.query)
            return self.query.fingerprint == own.fingerprint or super().is_done()

    monkeypatch.setattr("spillway.stream.service.Stream", Caught)
    for query in ("symbol", str(tmp_path / "none.toml")):
        words = [*settings, "--set", f"query={query}", "stream", "--until-sealed", DAY]
        assert code(*words, "--as-begun") == 0
        assert f"{DAY} is sealed already" in capsys.readouterr().out
        assert code(*words) == 2
    assert [each.fingerprint for each in given[::2]] == [own.fingerprint] * 2


def test_a_day_is_not_sealed_before_its_grace_is_over(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler says how long after the close it seals."""
    seal = [*settings, "--set", "session.grace_s=900", "seal", "--session", DAY, "--at", "close"]
    assert code(*seal, "--close-delay=600") == 2
    said = capsys.readouterr().err
    assert "session.grace_s is 900 s, but close_delay_s only 600 s" in said
    for delay in ([], ["--close-delay=900"]):
        assert code(*seal, *delay) == 4
        assert "there is no warehouse" in capsys.readouterr().err


def test_doctor_is_told_when_the_day_is_closed(
    settings: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.doctor.inputs.CONNECT_S", 0.1)
    kafka = ["--set", "kafka.bootstrap_servers=127.0.0.1:1"]
    assert code(*settings, *kafka, "doctor", "--json", "--close-delay", "60") == 3
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert checks["close delay"]["status"] == "fail"
    assert "session.grace_s is 300 s, but close_delay_s only 60 s" in checks["close delay"]["what"]


def test_the_reason_of_a_dry_run_is_kept(tmp_path: Path, settings: list[str]) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, make_day(12, slots=2, groups_depth=3).entries)
    main_ok(*settings, "rebalance", "--dry-run", "--by", "alice")
    assert warehouse.sessions.read() == []
    main_ok(*settings, "rebalance", "--dry-run", "--by", "alice", "--reason", "slot 0 looks full")
    main_ok(*settings, "rebalance", "--spill", "0:1KiB", "--by", "bob", "--reason", "make room")
    [event] = warehouse.sessions.read()
    assert (event.session, event.event) == (DAY, "asked")
    assert event.details["by"] == "alice"
    assert event.details["reason"] == "slot 0 looks full"
    assert event.details["dry_run"] is True
    [command] = [each.command for each in warehouse.commands.read(-1)]
    assert (command.by, command.reason) == ("bob", "make room")


def test_a_broker_of_another_folder_is_told_to_be_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who stands in another folder has no topics there, and would look for them."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "var" / "kafka"

    def start(folder: Path, port: int) -> broker.BrokerStatus:
        (data / "data").mkdir(parents=True, exist_ok=True)
        (data / "data" / "meta.properties").touch()
        return broker.BrokerStatus(True, True, f"127.0.0.1:{port}", str(data), "broker.log", 7)

    monkeypatch.setattr(broker, "start", start)
    main_ok("kafka", "start")
    assert f"It is a new, empty broker; its data are in {data}\n" in capsys.readouterr().out
    main_ok("kafka", "start")
    assert "new" not in capsys.readouterr().out.replace(str(data), "")


@pytest.mark.parametrize("command", ["", "cleanup", "status", "rebalance", "relay"])
def test_help_names_what_an_option_takes_and_no_type_of_python(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main_ok(*command.split(), "--help")
    told = capsys.readouterr().out
    assert "<" not in told, "<bool>, <path>, <int range>"
    if command == "status":
        assert re.search(r"--report +FILE +Also", told)
        assert re.search(r"--all +Every session", told), "a flag takes nothing"


def test_the_version_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main_ok("--version")
    assert capsys.readouterr().out == f"spillway {version('spillway')}\n"
    monkeypatch.setattr("spillway.versions.PACKAGES", ("pyarrow", "no-such-package"))
    main_ok("--version", "--verbose")
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"python {platform.python_version()}",
        f"pyarrow {version('pyarrow')}",
        "no-such-package is not installed",
        *(f"format of {what}: {number}" for what, number in formats().items()),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--verbose", "status"), "--verbose goes with --version"), (("--set", "a=b"), "Missing")],
)
def test_an_option_alone_is_no_command(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(*arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["verify", "--session", DAY], "is not sealed"),
        (["cleanup", "--session", DAY], "is not sealed"),
        (["cleanup", "--plan", "--session", DAY], "is not sealed"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_refusal_leaves_the_details_of_a_bug_alone(
    tmp_path: Path,
    settings: list[str],
    command: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = load_query("symbol")
    made = make_day(3, query=own.fingerprint)
    made.entries[0] = made.entries[0].model_copy(update={"text": own.text})
    fill_journal(open_warehouse(str(tmp_path / "w")), made.entries)
    assert code(*settings, *command) == 3
    said = capsys.readouterr().err
    assert says in said
    assert "details" not in said
    assert not (tmp_path / "var" / "last-error.txt").exists(), "a bug's may lie there"


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (StorageError(errno.ENOSPC, "cannot write w: no space is left"), 3),
        (NotPrivate("w is a symbolic link: it could lead anywhere. Remove it"), 3),
        (NotCleaned("results are still missing: run `spillway cleanup`"), 3),
        (InputGone("Kafka does not hold the input any more"), 3),
        (JarError("jars are not there: run 'spillway setup'"), 3),
        (JavaError("no java on the path: install one"), 3),
        (CannotListen("127.0.0.1:80 is taken", "choose another"), 3),
        (Ended(End("another stream has taken over", fenced=True)), 3),
        (OptionError("kafka.options: ssl.provider has no counterpart"), 2),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_what_a_line_explains_has_no_details(
    tmp_path: Path,
    settings: list[str],
    error: Exception,
    ends: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("spillway.topics.look", fails)
    assert code(*settings, "topics") == ends
    assert capsys.readouterr().err == f"spillway: {error}\n"
    assert not (tmp_path / "var" / "last-error.txt").exists()


def test_a_panic_of_a_library_is_no_lost_result(
    tmp_path: Path,
    settings: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rust's is no `Exception`. Left to Python it ends with 1: as if results were wrong."""

    class Panic(BaseException):
        pass

    def fails(*_: object, **__: object) -> None:
        raise Panic("called `unwrap()` on a `None` value")

    monkeypatch.setattr("spillway.topics.look", fails)
    assert code(*settings, "topics") == 3
    assert capsys.readouterr().err.startswith("spillway: called `unwrap()`")
    assert "Panic" in (tmp_path / "var" / "last-error.txt").read_text()


def test_an_error_is_told_where_its_details_cannot_be_kept(
    tmp_path: Path,
    settings: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the error is about, a full disk or a limit of open files, may be why."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("spillway.topics.look", fails)
    (tmp_path / "var").write_text("no folder")
    assert code(*settings, "topics") == 3
    error, details = capsys.readouterr().err.splitlines()
    assert error == "spillway: too many open files: raise the limit (`ulimit -n`)"
    assert details.startswith("(details are not kept: ")
