"""What counts as killed, how sure the score is, and that the page's list fits the source."""

from __future__ import annotations

import importlib
import inspect
import re
import signal
from functools import reduce

import pytest

from tests.mutants.sample import (
    MUTATED,
    PAGE,
    ROOT,
    Mutant,
    Reached,
    equivalents,
    is_near,
    judged,
    mutated_files,
    percent,
    report,
    wilson,
)

GONE = Mutant(
    "spillway.sealing.x_seal__mutmut_1", "jobs/spillway/sealing.py", ("-    a = 1", "+    a = 2")
)
METHOD = Mutant(
    "spillway.engine.join.kernel.xǁJoinǁadd__mutmut_12", "jobs/spillway/engine/join/kernel.py", ()
)


def test_mutants_are_named_as_python_names_their_place() -> None:
    assert GONE.change == ("spillway.sealing.seal", "a = 1", "a = 2")
    assert METHOD.place == "spillway.engine.join.kernel.Join.add"
    assert METHOD.function == "spillway.engine.join.kernel.xǁJoinǁadd"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "SURVIVED"),
        (1, "killed"),
        (2, "killed (its tests cannot be loaded)"),
        (3, "NOT RUN (pytest ended with 3)"),
        (4, "NOT RUN (pytest ended with 4)"),
        (5, "NOT RUN (pytest ended with 5)"),
        (-signal.SIGXCPU, "killed (it hangs)"),
        (-signal.SIGSEGV, "killed (signal 11)"),
    ],
)
def test_only_a_failed_test_kills(code: int, expected: str) -> None:
    assert judged(code, True, 60.0) == expected


def test_what_cannot_be_loaded_with_a_mutant_kills_it() -> None:
    assert judged(4, True, 60.0, anew=True) == "killed (its tests cannot be loaded)"
    assert judged(0, True, 60.0, anew=True) == "SURVIVED"


def test_what_is_called_on_loading_is_of_all_tests_of_its_module() -> None:
    tests = {
        "a": (1.0, ["spillway.a.x_f"]),
        "b": (1.0, ["spillway.b.x_g"]),
        "c": (2.0, ["spillway.a.xǁCǁm"]),
    }
    known = Reached(tests, frozenset(), frozenset({"spillway.a.x_table"}), lambda *_: True)
    assert known.of("spillway.a.x_table", 60.0) == (["a", "c"], 3.0, True)


def test_a_survivor_of_some_tests_says_so() -> None:
    assert judged(0, False, 60.0) == "SURVIVED 60 s of tests"


def test_the_quickest_files_come_first_and_no_more_than_allowed() -> None:
    tests = {
        "slow::a": (50.0, ["m.x_f"]),
        "quick::b": (1.0, ["m.x_f"]),
        "quick::a": (2.0, ["m.x_f"]),
        "some::a": (20.0, ["m.x_f"]),
    }
    bad = {"bad::a": (0.1, ["m.x_f"])}
    known = Reached(tests | bad, frozenset(bad), frozenset(), lambda *_: True)
    quick = ["quick::b", "quick::a"]
    assert known.of("m.x_f", 100.0) == ([*quick, "some::a", "slow::a"], 73.0, True)
    assert known.of("m.x_f", 60.0) == ([*quick, "some::a"], 23.0, False)
    assert known.of("m.x_f", 0.5) == (["quick::b"], 1.0, False)
    assert known.of("m.x_h", 60.0) == ([], 0.0, True)
    near = Reached(tests, frozenset(), frozenset(), lambda *of: of == ("slow", "m"))
    assert near.of("m.x_f", 100.0) == (["slow::a", *quick, "some::a"], 73.0, True)


def test_a_test_file_is_near_the_modules_that_it_names() -> None:
    me = "tests/unit/test_offsets.py"
    assert is_near(me, "spillway.protocol.offsets")
    assert not is_near(me, "spillway.protocol.off")
    assert not is_near(me, "spillway.protocol.driver")
    assert is_near("tests/property/test_protocol_model.py", "spillway.engine.step")


def test_the_interval_is_wilsons() -> None:
    # As in the tables of Newcombe (1998): 81 of 263, and 0 of 20.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert percent(95, 100) == "95 of 100 = 95.0% (95 % interval 88.8% to 97.8%)"


@pytest.mark.parametrize(("least", "code"), [(50.0, 0), (50.1, 1)])
def test_too_low_a_score_ends_with_1(
    least: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([GONE, METHOD], {GONE.name: "SURVIVED"}, least, 60.0) == code
    printed = capsys.readouterr().out
    assert f"{GONE.name}: SURVIVED\n-    a = 1\n+    a = 2\n" in printed
    assert "1 of 2 = 50.0%" in printed


def test_there_is_what_is_mutated() -> None:
    assert [pattern for pattern in MUTATED if not list(ROOT.glob(pattern))] == []


def test_modules_of_spark_are_left_out() -> None:
    names = {str(file) for file in mutated_files()}
    assert {
        "jobs/spillway/sealing.py",
        "jobs/spillway/engine/step.py",
        "jobs/spillway/stream/decoding.py",
    } <= names
    assert not names & {
        "jobs/spillway/stream/session.py",
        "jobs/spillway/verify/frames.py",
        "jobs/spillway/verify/proof.py",
        "jobs/spillway/engine/state/runs.py",
    }


def _at(place: str) -> object:
    """What a dotted name means: the longest part of it is a module."""
    parts = place.split(".")
    for n in range(len(parts), 0, -1):
        try:
            return reduce(getattr, parts[n:], importlib.import_module(".".join(parts[:n])))
        except ModuleNotFoundError:
            continue
    raise LookupError(place)


def test_every_entry_of_the_list_is_read() -> None:
    """A block that is not closed would hide the next one."""
    named = re.findall(r"^(?:  \{ )?in = ", PAGE.read_text(), re.MULTILINE)
    assert len(named) == len(equivalents())


@pytest.mark.parametrize("where", sorted({place for place, _, _ in equivalents()}))
def test_changes_that_change_nothing_fit_the_source(where: str) -> None:
    lines = [line.strip() for line in inspect.getsource(_at(where)).splitlines()]  # type: ignore[arg-type]
    for place, old, _ in equivalents():
        if place == where:
            assert set(old.splitlines()) <= set(lines), f"{where}: {old!r} is not there; {PAGE}"
