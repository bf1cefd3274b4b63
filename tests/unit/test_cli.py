"""The command line's exit codes, as other programs tell cases apart by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import main
from tests.report_journal import open_warehouse


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


@pytest.mark.parametrize("command", ["rebalance", "status"])
def test_nothing_yet_is_an_exit_code_of_its_own(
    tmp_path: Path, settings: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(*settings, command) == 4
    assert "there is no warehouse" in capsys.readouterr().err
    open_warehouse(str(tmp_path / "w"))
    assert code(*settings, command) == 4
    assert "is empty: start `spillway stream`" in capsys.readouterr().err
    assert not (tmp_path / "var" / "last-error.txt").exists(), "nothing is wrong"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rebalance", "--policy", "nonsense"], "unknown policy 'nonsense'"),
        (["--set", "state.slots=none", "rebalance"], "state.slots"),
    ],
)
def test_wrong_usage_is_told_before_there_is_a_warehouse(
    settings: list[str], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(*settings, *arguments) == 2
    assert says in capsys.readouterr().err
