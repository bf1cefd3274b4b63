"""Folders and files that are this user's alone: made so, and refused when they are not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from spillway import private as module
from spillway.doctor.check import Check
from spillway.doctor.disks import folders
from spillway.private import (
    NotPrivate,
    folder_problem,
    is_exchangeable,
    open_private,
    private_folder,
)
from spillway.storage import folder, private
from spillway.tables.statekey import KEY_BYTES, NAME, state_key
from spillway_airflow.launchers import LaunchFailed, ProcessLauncher
from spillway_schemas.setting_fields import StateSettings
from spillway_schemas.settings import load_settings


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture(autouse=True)
def lax_umask() -> object:
    """As users have it who never thought of it."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_made_is_this_users_alone(tmp_path: Path) -> None:
    root = private(str(tmp_path / "deep" / "state"))
    slot = root.child("w1").child("slot-0")
    slot.write_new("a.arrow", b"rows")
    with slot.create("b.arrow") as sink:
        sink.write(b"rows")
    folders = ["deep", "deep/state", "deep/state/w1", "deep/state/w1/slot-0"]
    assert [mode(tmp_path / each) for each in folders] == [0o700] * 4
    assert [mode(slot.path(name)) for name in ("a.arrow", "b.arrow")] == [0o600] * 2
    assert slot.read("a.arrow") == bytes(slot.map("b.arrow")) == b"rows"


@pytest.mark.parametrize("found", [0o755, 0o775])
def test_a_folder_of_ours_that_others_look_into_is_closed(tmp_path: Path, found: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(found)
    private(str(tmp_path / "state"))
    assert mode(tmp_path / "state") == 0o700


def test_what_others_may_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    for name, what in [
        ("link", "is a symbolic link.*Remove it"),
        ("file", "not a folder: move it away"),
        ("open", "can be written by every user.*chmod 700"),
    ]:
        with pytest.raises(NotPrivate, match=what):
            private(str(tmp_path / name))
        assert folder_problem(tmp_path / name)
    assert mode(tmp_path / "real") == 0o777, "nothing was done through the link"
    monkeypatch.setattr(module.os, "geteuid", lambda: 4242)
    with pytest.raises(NotPrivate, match=r"belongs to user \d+, not to this one \(4242\): remove"):
        private(str(tmp_path / "real"))


def test_a_folder_in_somebody_elses_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned_by(monkeypatch, {tmp_path: 1234})
    with pytest.raises(NotPrivate, match=f"{tmp_path} belongs to user 1234, who can exchange"):
        private_folder(tmp_path / "a" / "b", whole_way=True)
    assert list(tmp_path.iterdir()) == [], "nothing was made there"


def owned_by(patch: pytest.MonkeyPatch, owner: dict[Path, int]) -> None:
    """As if these paths, and no others, were somebody else's."""
    real = os.lstat

    def lstat(path: object, **how: object) -> object:
        found = real(path, **how)  # type: ignore[call-overload]
        uid = owner.get(Path(str(path)), os.geteuid())
        return os.stat_result((*found[:4], uid, *found[5:10]))

    patch.setattr(module.os, "lstat", lstat)


def test_a_link_on_the_way_is_roots_or_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, shared = tmp_path / "real", tmp_path / "shared"
    for each in (real, shared):
        each.mkdir(0o700)
    (shared / "link").symlink_to("../real")
    (shared / "whole").symlink_to(real)
    for name in ("link", "whole"):
        private_folder(shared / name / "ours", whole_way=True)
        with monkeypatch.context() as patch:
            owned_by(patch, {shared / name: 1234})
            with pytest.raises(NotPrivate, match=f"{name} is a link that belongs to user 1234"):
                private_folder(shared / name / "deep" / "state", whole_way=True)
            assert folder_problem(shared / name / "ours", whole_way=True)
            owned_by(patch, {real: 1234})
            with pytest.raises(NotPrivate, match=f"{real} belongs to user 1234"):
                private_folder(shared / name / "deep" / "state", whole_way=True)
    assert [each.name for each in real.iterdir()] == ["ours"]
    (shared / "round").symlink_to("round")
    with pytest.raises(NotPrivate, match="too many links"):
        private_folder(shared / "round" / "state", whole_way=True)


def test_a_private_file_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"theirs")
    (tmp_path / "a").chmod(0o600)
    monkeypatch.setattr(module.os, "geteuid", lambda: 4242)
    with pytest.raises(NotPrivate, match="belongs to user"):
        open(tmp_path / "a", "rb", opener=open_private)  # noqa: SIM115


@pytest.mark.parametrize(("uid", "fine"), [(0, True), (65534, True), (1, False), (1000, False)])
def test_folders_above_are_roots_ours_or_of_nobody_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, fine: bool
) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 4242)
    owned_by(monkeypatch, {tmp_path: uid})
    assert (folder_problem(tmp_path / "state", whole_way=True) is None) == fine


def test_links_lead_nowhere(tmp_path: Path) -> None:
    state = private(str(tmp_path / "state"))
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    os.symlink(victim, state.path("a.arrow"))
    for look in (state.read, state.map, state.open):
        with pytest.raises(NotPrivate, match="symbolic link"):
            look("a.arrow")
    with pytest.raises(FileExistsError):
        state.write_new("a.arrow", b"theirs")
    with pytest.raises(NotPrivate, match="symbolic link"):
        open(tmp_path / "state" / "a.arrow", "w", opener=open_private)  # noqa: SIM115
    assert victim.read_bytes() == b"mine"
    assert [each.bytes for each in state.list()] != [4], "what it leads to is not looked at"


@pytest.mark.parametrize("flag", ["r", "w", "a"])
def test_a_private_file_is_looked_at_before_it_is_touched(tmp_path: Path, flag: str) -> None:
    theirs, pipe, own = tmp_path / "theirs", tmp_path / "pipe", tmp_path / "own"
    theirs.write_bytes(b"precious")
    theirs.chmod(0o666)
    with pytest.raises(NotPrivate, match=f"written by every user.*chmod 600 {theirs}"):
        open(theirs, flag, opener=open_private)  # noqa: SIM115
    assert theirs.read_bytes() == b"precious"
    os.mkfifo(pipe)
    for odd in (pipe, tmp_path):
        with pytest.raises((NotPrivate, IsADirectoryError), match=r"regular file|Is a directory"):
            open(odd, flag, opener=open_private)  # noqa: SIM115
    own.write_bytes(b"old and long")
    own.chmod(0o640)
    with open(own, flag, opener=open_private) as file:
        if flag != "r":
            file.write("new")
    assert own.read_bytes() == {"r": b"old and long", "w": b"new", "a": b"old and longnew"}[flag]
    assert mode(own) == 0o600


def test_where_others_may_rename_is_known(tmp_path: Path) -> None:
    assert not is_exchangeable(tmp_path / "state")
    tmp_path.chmod(0o1777)
    assert not is_exchangeable(tmp_path / "state")
    tmp_path.chmod(0o777)
    assert is_exchangeable(tmp_path / "state")


def test_the_default_root_is_each_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = set()
    for user in (1000, 1001):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        roots.add(StateSettings().root)
    assert len(roots) == 2 or roots == {"var/state"}


def test_doctor_says_why_and_what_to_do(tmp_path: Path) -> None:
    def state_check() -> Check:
        settings, _ = load_settings(None, {"state.root": str(tmp_path / "state")}, {})
        return next(each for each in folders(settings) if each.name == "state folder")

    assert state_check().status == "ok"
    (tmp_path / "state").symlink_to(tmp_path)
    found = state_check()
    assert (found.status, found.what.count("symbolic link")) == ("fail", 1)
    assert "state.root" in found.mend
    (tmp_path / "state").unlink()
    tmp_path.chmod(0o777)
    found = state_check()
    assert (found.status, "chmod +t" in found.mend) == ("warn", True)


def test_the_services_folder_is_private_too(tmp_path: Path) -> None:
    """The note in it says which process gets SIGKILL."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "service").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchFailed, match="symbolic link"):
        ProcessLauncher(None, tmp_path / "service").start()
    assert not list((tmp_path / "elsewhere").iterdir())


# --- the key of the digests ------------------------------------------------------------------


def test_a_warehouse_has_one_key_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, again, other = (state_key(folder(str(tmp_path / name))) for name in "aab")
    assert first == again != other
    assert len(first.get_secret_value()) == KEY_BYTES
    assert mode(tmp_path / "a" / NAME) == 0o600
    assert [each.name for each in (tmp_path / "a").iterdir()] == [NAME]


def test_a_key_that_is_no_secret_is_refused(tmp_path: Path) -> None:
    place, path = folder(str(tmp_path)), tmp_path / NAME
    before = state_key(place)
    path.chmod(0o660)  # as a Kubernetes volume with fsGroup makes it
    assert state_key(place) == before
    assert mode(path) == 0o600
    path.chmod(0o644)
    with pytest.raises(NotPrivate, match="no secret: delete it"):
        state_key(place)
    path.unlink()
    assert state_key(place) != before
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(NotPrivate, match="not a key"):
        state_key(place)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPrivate, match="symbolic link"):
        state_key(place)
