"""The list of named mutants fits the source: a text that has changed would be tried no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants.run import ROOT, Mutant, named, verdict


@pytest.mark.parametrize("mutant", named(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.file, "exec")
    assert mutant.tests
    assert not [test for test in mutant.tests if not (ROOT / test).is_file()]


def test_names_are_given_once() -> None:
    names = [each.name for each in named()]
    assert len(names) == len(set(names))


@pytest.mark.server
@pytest.mark.parametrize(
    ("new", "expected"),
    [("return 1", "SURVIVED"), ("return 2", "killed")],
)
def test_a_mutant_is_killed_when_tests_fail(tmp_path: Path, new: str, expected: str) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['server','soak']\n"
    )
    (tmp_path / "thing.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_thing.py").write_text(
        "import thing\n\ndef test_it():\n    assert thing.one() == 1\n"
    )
    mutant = Mutant("m", "thing.py", "return 1", new, ("test_thing.py",))
    assert verdict(mutant, tmp_path) == expected
    assert "return 1" in (tmp_path / "thing.py").read_text()


@pytest.mark.server
def test_a_test_that_does_not_run_kills_nothing(tmp_path: Path) -> None:
    (tmp_path / "thing.py").write_text("x = 1\n")
    mutant = Mutant("m", "thing.py", "x = 1", "x = 2", ("test_missing.py",))
    assert verdict(mutant, tmp_path).startswith("NOT RUN (pytest ended with 4)")


def test_a_list_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "named", lambda: [Mutant("m", "pyproject.toml", "no such", "", ())])
    assert run.main([]) == 2
    assert "m: its text stands 0 times in pyproject.toml" in capsys.readouterr().err
