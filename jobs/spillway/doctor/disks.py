"""Checks of the folders: whether tables and state can be written there, and how fast."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spillway.doctor.check import Check
from spillway.doctor.machine import existing, file_system
from spillway.doctor.stores import object_store
from spillway.private import folder_problem, is_exchangeable
from spillway.report.words import bytes_text
from spillway_schemas.settings import Settings
from spillway_schemas.stores import is_uri

LITTLE_DISK = 5 << 30
"""Free bytes on the warehouse's disk below which there is a warning."""
NO_DISK = 64 << 20
"""... below which the stream does not start: an epoch that cannot be written ends it, and what
its tasks had finished stays behind."""
TRIAL_BYTES = 256 << 10
SLOW_S = 1.0
"""An epoch writes several files one after another, each as the trial does."""
PATIENCE_S = 10.0
"""A disk or a mount that does not answer for so long hangs."""
ACCESS = {
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EROFS: "mount it for writing",
}
"""What to do where a folder cannot be written, by the error's number."""
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "glusterfs"}


@dataclass(frozen=True)
class Trial:
    """What came of writing a file of `TRIAL_BYTES` and making it durable."""

    free_bytes: int = 0
    seconds: float | None = None
    """None: no answer within `PATIENCE_S`."""
    error: OSError | None = None


def folders(settings: Settings) -> Iterator[Check]:
    """Whether tables and state can be written where the settings say."""
    if is_uri(settings.warehouse.root):
        yield object_store(settings)
    else:
        root = settings.warehouse.root
        found = _folder("warehouse", root, "warehouse.root")
        yield found if found.status == "fail" else _closed_tables(Path(root)) or found
    yield _private("state folder", settings.state.root, "state.root")


def _closed_tables(root: Path) -> Check | None:
    """The tables' folders that this user cannot write, where a root that he can write has some: a
    command that ran as another user has made them. None: there are none."""
    below = (*root.glob("*/"), *root.glob("*/_delta_log/"))
    closed = sorted(each for each in below if not os.access(each, os.W_OK | os.X_OK))
    if not closed:
        return None
    more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
    return Check(
        "warehouse",
        "fail",
        f"{closed[0]}{more} cannot be written: permission denied",
        f"give this user access to all of {root} (`chown -R`), and run every command as one user",
    )


def _folder(name: str, place: str, setting: str) -> Check:
    return judge_folder(name, place, setting, try_folder(Path(place)), file_system(Path(place)))


def _private(name: str, place: str, setting: str) -> Check:
    """As `_folder`, for one that must be this user's alone."""
    if problem := folder_problem(Path(place), whole_way=True):
        return Check(name, "fail", problem, f"mend it, or set {setting} to another folder")
    if is_exchangeable(Path(place)):
        return Check(
            name,
            "warn",
            f"{Path(place).parent} lets every user rename what is in it, {place} too",
            f"set its sticky bit (`chmod +t`), or set {setting} to a folder of your own",
        )
    return _folder(name, place, setting)


def try_folder(path: Path) -> Trial:
    """Write a file that nobody sees into a folder, or into the one that it will be made in."""
    found: list[Trial] = []
    writer = threading.Thread(target=lambda: found.append(_trial(path)), daemon=True)
    writer.start()
    writer.join(PATIENCE_S)
    return found[0] if found else Trial()


def _trial(path: Path) -> Trial:
    began = time.monotonic()
    try:
        path = existing(path)  # it need not exist yet; a look makes nothing
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            left = TRIAL_BYTES
            while left:
                left -= file.write(bytes(left))
            os.fsync(file.fileno())
        return Trial(shutil.disk_usage(path).free, time.monotonic() - began)
    except OSError as error:
        return Trial(seconds=time.monotonic() - began, error=error)


def judge_folder(name: str, place: str, setting: str, trial: Trial, kind: str) -> Check:
    """A folder by its trial. `kind`: type of its file system."""
    elsewhere = f"or set {setting} to another folder"
    if trial.seconds is None:
        return Check(
            name,
            "fail",
            f"{place} does not answer: writing {bytes_text(TRIAL_BYTES)} took over "
            f"{PATIENCE_S:.0f} s",
            f"check the disk or the mount (dmesg, mount), {elsewhere}",
        )
    if trial.error is not None and trial.error.errno in (errno.ENOSPC, errno.EDQUOT):
        # What a warehouse holds is needed; state is read again from Kafka.
        mend = "or enlarge the disk" if name == "warehouse" else elsewhere
        return Check(name, "fail", f"{place}: no space is left", f"free some there, {mend}")
    if trial.error is not None:
        mend = ACCESS.get(trial.error.errno or 0, "mend that")
        return Check(
            name,
            "fail",
            f"{place} cannot be written: {trial.error.strerror}",
            f"{mend}, {elsewhere}",
        )
    if name == "warehouse" and trial.free_bytes < LITTLE_DISK:
        return Check(
            name,
            "fail" if trial.free_bytes < NO_DISK else "warn",
            f"{place}: only {bytes_text(trial.free_bytes)} free",
            "results and spilled state grow all day: free some space, or choose another disk",
        )
    if kind in NETWORK_FILE_SYSTEMS and name == "state folder":
        return Check(
            name,
            "fail",
            f"{place} lies on {kind}: state is memory-mapped and read at every epoch",
            f"set {setting} to a local folder, best on tmpfs",
        )
    if trial.seconds > SLOW_S:
        return Check(
            name,
            "warn",
            f"{place} is slow: writing {bytes_text(TRIAL_BYTES)} took {trial.seconds:.1f} s",
            f"every epoch waits for it: see what else uses the disk, {elsewhere}",
        )
    return Check(name, "ok", f"{place} ({kind}, {bytes_text(trial.free_bytes)} free)")
