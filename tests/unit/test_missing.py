"""What a test needs and this machine lacks fails where everything is to be tested, or is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import cgroups, disks, hosts, missing

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)
"""Both, for a skip that nobody catches would be this test's own."""


def group(_: Path) -> None:
    with cgroups.control_group(1 << 20):
        pass


def disk(place: Path) -> None:
    with disks.mounted(place / "disk", "64k"):
        pass


def slow(place: Path) -> None:
    disks.slow_disk(place, place, 1.0)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without programs and control groups."""
    monkeypatch.setattr(cgroups, "FIRST_VERSION", tmp_path / "none")
    monkeypatch.setattr(hosts, "refusal", hosts.refusal.__wrapped__)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_where_everything_is_tested_a_missing_program_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    told = "there is no promtool: install it"
    with pytest.raises(OUTCOMES, match=told) as raised:
        missing.without("promtool", "install it")
    assert raised.type is pytest.fail.Exception
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match=told):
        missing.without("promtool", "install it")
    assert "promtool" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    ("name", "use"), [(cgroups.NEEDED, group), (disks.NEEDED, disk), ("C compiler", slow)]
)
def test_a_helper_fails_in_ci_unless_it_was_told(
    bare: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Callable[[Path], None]
) -> None:
    """Kills: `pytest.skip` in the helper; another name than the one that `.ci/run` passes on."""
    monkeypatch.setenv("CI", "true")
    told = f"there is no {name}: "
    with pytest.raises(OUTCOMES, match=told) as raised:
        use(bare)
    assert raised.type is pytest.fail.Exception
    monkeypatch.setenv("SPILLWAY_TEST_WITHOUT", f"node,{name}")
    (bare / "again").mkdir()
    with pytest.raises(pytest.skip.Exception, match=told):
        use(bare / "again")


def test_what_a_kernel_refuses_is_told_before_the_tests(bare: Path) -> None:
    """Kills: a refusal that nobody asks for; `.ci/run` without the question."""
    assert set(missing.refused()) == {cgroups.NEEDED, disks.NEEDED, hosts.NEEDED}
    assert "-m tests.missing" in (ROOT / ".ci" / "run").read_text()
