"""Files and folders that belong to this user alone, in places that others may write to as well.

`/dev/shm` and `/tmp` are everybody's: another user of the host may make the folder that we are
about to use, or put a link there that leads our writes elsewhere. So a private folder is made with
0700 and refused unless it is a folder, not a link, and this user's; a private file is made with
0600 and never opened through a link. Once the folder is ours and closed to others, nobody else
can put anything into it, and since the folder above is root's or ours and sticky, nobody can put
another one in its place either.

Known limitation: where the folder above lets everybody rename what is in it (writable by all and
not sticky, such as a Kubernetes `emptyDir`), that is up to whoever shares it. `doctor` warns.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from spillway_schemas.exits import FAILED

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OTHERS_WRITE = 0o002
"""A group's right to write is taken away: `umask 002` gives it, mostly to a group of one."""
_OTHERS = 0o077
_MOST_LINKS = 40
"""On the way to a folder, as Linux has it."""
_NOBODY = 65534
"""The owner, in a user namespace, of what the namespace does not know: the host's own folders."""


class NotPrivate(OSError):
    """A file or folder that others may have made or can change. Says what to do."""

    exit_code = FAILED


def private_folder(path: str | Path, *, whole_way: bool = False) -> Path:
    """Make a folder that is this user's alone, with those above it; or check one that is there.

    One of ours that others could look into is closed to them; one that everybody could write
    to is refused, since its files may be anybody's. `whole_way`: no folder above may be somebody
    else's either, but root's. Raises NotPrivate.
    """
    folder = Path(os.path.abspath(path))
    if not os.path.lexists(folder):
        if whole_way and (problem := _above(folder)):
            raise NotPrivate(problem)
        if not folder.parent.exists():
            private_folder(folder.parent, whole_way=whole_way)
        try:
            folder.mkdir(FOLDER_MODE)
        except FileExistsError:
            pass  # somebody was faster: it is looked at like any other
    if problem := folder_problem(folder, whole_way=whole_way):
        raise NotPrivate(problem)
    # By a descriptor, and its owner again: in between, another folder may have taken its place.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise NotPrivate(f"{folder} was exchanged by user {found.st_uid} a moment ago")
        if stat.S_IMODE(found.st_mode) & _OTHERS:
            os.fchmod(fd, FOLDER_MODE)
    finally:
        os.close(fd)
    return folder


def folder_problem(folder: Path, *, whole_way: bool = False) -> str | None:
    """Why a folder cannot be private, and what to do; None when it can, or is not there yet."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return _above(folder) if whole_way else None
    me = os.geteuid()
    if stat.S_ISLNK(found.st_mode):
        return (
            f"{folder} is a symbolic link: its files could be led anywhere. Remove it, or name the "
            "folder that it leads to"
        )
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder: move it away, or name another folder"
    if found.st_uid != me:
        return (
            f"{folder} belongs to user {found.st_uid}, not to this one ({me}): remove it, or name "
            "a folder of your own (one inside it will do where this user may write there)"
        )
    if found.st_mode & _OTHERS_WRITE:
        return (
            f"{folder} can be written by every user, who may have put files there: remove it, or "
            f"make sure of what is in it and run `chmod 700 {folder}`"
        )
    return _above(folder) if whole_way else None


def _above(folder: Path) -> str | None:
    """A folder above, or a link on the way, that somebody else owns: that user can exchange what
    is below it. The way is the one that the system goes, through every link."""
    me = os.geteuid()
    way = list(reversed(Path(os.path.abspath(folder)).parts[:-1]))
    above, links = Path("/"), 0
    while way:
        part = way.pop()
        here = above.parent if part == ".." else above / part
        try:
            found = os.lstat(here)
        except FileNotFoundError:
            return None  # and so there is nothing below
        is_link = stat.S_ISLNK(found.st_mode)
        if found.st_uid not in (0, me, _NOBODY):
            return (
                f"{here}{' is a link that' if is_link else ''} belongs to user {found.st_uid}, who "
                f"can exchange {folder}: name a folder that lies in folders of yours or of root"
            )
        if not is_link:
            above = here
            continue
        links += 1
        if links > _MOST_LINKS:
            return f"{folder} lies behind too many links: name the folder itself"
        way += reversed(Path(os.readlink(here)).parts)  # an absolute one begins with the root
    return None


def is_exchangeable(folder: Path) -> bool:
    """Whether everybody may rename what lies beside the folder, and so the folder itself."""
    for above in folder.parents:
        if above.exists():
            mode = above.stat().st_mode
            return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    return False


def refuse_link(path: str | Path) -> None:
    """Raise NotPrivate for a symbolic link."""
    if os.path.islink(path):
        raise NotPrivate(f"{path} is a symbolic link: it could lead anywhere. Remove it")


def open_private(path: str | Path, flags: int) -> int:
    """A descriptor of a private file: made with 0600, and refused when it is a link.

    Has the form of `open`'s `opener`. Raises NotPrivate for a link, for what is no file, and for a
    file that somebody else owns or everybody may write; what is refused stays as it is.
    """
    # It is emptied once it was looked at. Without O_NONBLOCK a pipe would wait for its other end.
    careful = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, careful, FILE_MODE)
    except OSError as error:
        refuse_link(path)
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise _no_file(path) from error
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(path)
        if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
            raise NotPrivate(
                f"{path} belongs to user {found.st_uid} or can be written by every user: remove "
                f"it, or make sure of what is in it and run `chmod 600 {path}`"
            )
        if found.st_mode & _OTHERS:
            os.fchmod(fd, FILE_MODE)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _no_file(path: str | Path) -> NotPrivate:
    return NotPrivate(f"{path} is not a regular file: remove it")
