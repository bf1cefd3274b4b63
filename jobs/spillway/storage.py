"""Files: the one small interface through which state and warehouse are read and written.

Model: a `Folder` holds immutable files under names relative to it (`a.arrow`,
`session_date=2026-01-05/7-x-0-0.parquet`). A file is written once, whole, under a name that
nobody used before; it is never changed and never replaced.

Invariants:

* `write_new` and `create` fail with `FileExistsError` when the name is taken, also when two
  processes race for it. Neither ever touches a file of somebody else.
* A write that fails takes its own incomplete file away. After a crash an incomplete file may
  stay: nothing names it, so nothing reads it, and garbage rules delete it later.
* After `sync(names)` returns, the files' bytes and the entries of every folder between them
  and the place given to `folder()` survive a loss of power (as far as the disk keeps `fsync`).
* Folders are created when the first file is written into them; listing an absent folder
  gives nothing.
* A private folder (`private()`) is this user's alone, and so is everything below it: folders 0700,
  files 0600, links refused. See `spillway.private`.

Known limitation: only local paths and `file:` URIs so far. Another scheme is another class
with the same methods, chosen in `folder()`; `map` then downloads instead of mapping.
"""

from __future__ import annotations

import errno
import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from spillway.private import FILE_MODE, open_private, private_folder, refuse_link

SCHEMES = ("file",)
"""URI schemes that `folder` understands, besides plain paths."""

_ADVICE = {
    errno.ENOSPC: "no space is left: free some there, or choose another place in the settings",
    errno.EDQUOT: "the disk quota is used up: free some space there, or raise the quota",
    errno.EACCES: "permission denied: give this user access to it, or choose another place",
    errno.EPERM: "not permitted: give this user access to it, or choose another place",
    errno.EROFS: "the file system is read-only: choose a place that can be written",
    errno.EMFILE: "too many open files: raise the limit (`ulimit -n`)",
    errno.ENFILE: "too many open files on this host: raise the limit (`fs.file-max`)",
    errno.ENAMETOOLONG: "the name is too long for this file system: choose a shorter root",
    errno.ENOTDIR: "a file is where a folder is needed: move it away",
    errno.EIO: "the disk reports an error: check it (`dmesg`) before going on",
}

_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What an open file's own writes fail with."""


_TOLD = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
"""How Rust's libraries put the number of the operating system's error into their texts."""


class StorageError(OSError):
    """A file operation that failed for a reason that a person can mend; says which."""

    def __str__(self) -> str:
        """What happened and what to do, without the number."""
        return str(self.strerror)


def storage_error(action: str, path: str, error: BaseException) -> StorageError | None:
    """What a library's error comes to when the operating system refused to `action` a path.

    None when it is about something else, or nothing that a person can mend.
    """
    if isinstance(error, StorageError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (told := _TOLD.search(str(error))):
        number = int(told[1] or told[2])
    if number not in _ADVICE:
        return None
    return StorageError(number, f"cannot {action} {path}: {_ADVICE[number]}")


class FileInfo(NamedTuple):
    """One file of a listing."""

    name: str
    bytes: int
    modified_s: float
    """Seconds since 1970."""


class Folder(Protocol):
    """Immutable files under names relative to one place. Picklable, cheap to make."""

    @property
    def uri(self) -> str:
        """Where this folder is, as a URI."""

    def write_new(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a whole file. Raises FileExistsError when the name is taken."""

    def create(self, name: str) -> AbstractContextManager[Any]:
        """Open a new file to write into: a `pa.NativeFile` that every pyarrow writer takes.

        Raises FileExistsError when the name is taken. When the block raises, the file goes.
        """

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""

    def open(self, name: str) -> Any:
        """Return a readable, seekable `pa.NativeFile`. Raises FileNotFoundError."""

    def map(self, name: str) -> pa.Buffer:
        """Return a file's bytes without reading them (memory map). Raises FileNotFoundError.

        The buffer stays valid as long as anything refers to it, also after `delete`.
        """

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None when there is no such file."""

    def list(self) -> Iterator[FileInfo]:
        """Iterate over all files here and below, in no particular order."""

    def names(self) -> Iterator[str]:
        """Iterate over the names of what is here, folders included, in no particular order."""

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

    def sync(self, names: Iterable[str]) -> None:
        """Make files, and the folders' entries that lead to them, survive a loss of power."""

    def child(self, name: str) -> Folder:
        """Return the folder `name` below this one."""

    def path(self, name: str = "") -> str:
        """Return the location of a file (of the folder itself) as pyarrow and Spark take it."""


def folder(uri: str) -> Folder:
    """Return the folder at a local path or `file:` URI. Raises ValueError for other schemes."""
    if not uri:
        raise ValueError("a folder needs a path, e.g. /var/lib/spillway; the setting is empty")
    scheme, colon, _ = uri.partition(":")
    if not colon or "/" in scheme:
        return LocalFolder(os.path.abspath(os.path.expanduser(uri)))
    if scheme == "file":
        parts = urllib.parse.urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{uri}: a file: URI names no host; write file:///path")
        return LocalFolder(os.path.abspath(urllib.parse.unquote(parts.path)))
    raise ValueError(
        f"{uri}: the scheme {scheme!r} is not supported; use a local path or "
        + " or ".join(f"{s}:///path" for s in SCHEMES)
    )


def private(uri: str) -> Folder:
    """Return the folder at `uri` as one that is this user's alone; made, or checked when there.

    Raises `NotPrivate` for a link, for a folder that somebody else owns or may write to, and for
    one in somebody else's folder; ValueError as `folder` does.
    """
    place = folder(uri)
    root = place.path()
    with _explained("make", root):
        private_folder(root, whole_way=True)
    return LocalFolder(root, is_private=True)


@dataclass(frozen=True)
class LocalFolder:
    """A `Folder` on a local file system (tmpfs, NVMe, a mounted volume)."""

    root: str
    """Absolute path."""
    base: str = ""
    """Absolute path of the folder that `folder()` was asked for; `sync` goes up to its parent."""
    is_private: bool = False
    """Whether what is below is this user's alone."""

    @property
    def uri(self) -> str:
        """Where this folder is, as a `file:` URI."""
        return "file://" + urllib.parse.quote(self.root)

    def path(self, name: str = "") -> str:
        """Return the absolute path of a file, or of the folder itself."""
        if not name:
            return self.root
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise ValueError(f"not a name inside a folder: {name!r}")
        return os.path.join(self.root, *parts)

    def child(self, name: str) -> LocalFolder:
        """Return the folder `name` below this one."""
        return LocalFolder(self.path(name), self.base or self.root, self.is_private)

    def write_new(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a whole file. Raises FileExistsError when the name is taken."""
        path = self.path(name)
        with _explained("write", path):
            fd = self._new(path)
            try:
                with os.fdopen(fd, "wb", buffering=0) as file:
                    view = memoryview(data).cast("B")
                    while view:
                        view = view[file.write(view) :]
            except BaseException:
                _remove(path)
                raise

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a new file to write into; when the block raises, the file is removed."""
        path = self.path(name)
        with _explained("write", path):
            os.close(self._new(path))
        try:
            # The name is ours now, so that opening it for writing replaces nothing.
            # Of the block's own errors only those that a write to this file can meet are
            # explained: it may touch other files as well.
            with _explained("write", path, only=_WRITING), pa.OSFile(path, "wb") as sink:
                yield sink
        except BaseException:
            _remove(path)
            raise

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""
        path = self.path(name)
        opener = open_private if self.is_private else None
        with _explained("read", path), open(path, "rb", opener=opener) as file:
            return file.read()

    def open(self, name: str) -> Any:
        """Return a readable, seekable `pa.NativeFile`. Raises FileNotFoundError."""
        path = self.path(name)
        with _explained("read", path):
            if self.is_private:
                refuse_link(path)
            return pa.OSFile(path, "rb")

    def map(self, name: str) -> pa.Buffer:
        """Return a file's bytes as a memory map. Raises FileNotFoundError."""
        path = self.path(name)
        with _explained("read", path):
            if self.is_private:
                # By its name: in a folder that is ours alone nobody exchanges it meanwhile.
                refuse_link(path)
            if os.path.getsize(path) == 0:  # nothing can be mapped
                return pa.py_buffer(b"")
            return pa.memory_map(path, "r").read_buffer()

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None when there is no such file."""
        path = self.path(name)
        with _explained("read", path):
            try:
                return os.stat(path).st_size
            except FileNotFoundError:
                return None

    def list(self) -> Iterator[FileInfo]:
        """Iterate over all files here and below; what vanishes meanwhile is left out."""
        folders = [""]
        while folders:
            within = folders.pop()
            path = self.path(within)
            try:
                with _explained("list", path):
                    entries = list(os.scandir(path))
            except FileNotFoundError:
                continue
            for entry in entries:
                name = f"{within}/{entry.name}" if within else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                        continue
                    stat = entry.stat(follow_symlinks=not self.is_private)
                except FileNotFoundError:
                    continue
                yield FileInfo(name, stat.st_size, stat.st_mtime)

    def names(self) -> Iterator[str]:
        """Iterate over the names of what is here; none of a folder that is not there."""
        path = self.path()
        try:
            with _explained("list", path):
                yield from os.listdir(path)
        except FileNotFoundError:
            return

    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        path = self.path(name)
        with _explained("delete", path):
            _remove(path)

    def sync(self, names: Iterable[str]) -> None:
        """Make files, and the folders' entries that lead to them, survive a loss of power."""
        # The parent of the base holds the entry of the base itself.
        top = os.path.dirname(self.base or self.root)
        folders: set[str] = set()
        for name in names:
            path = self.path(name)
            _fsync(path)
            parent = os.path.dirname(path)
            while parent not in folders and len(parent) >= len(top):
                folders.add(parent)
                parent = os.path.dirname(parent)
        for path in sorted(folders, key=len, reverse=True):
            _fsync(path)

    def _new(self, path: str) -> int:
        return _open_new_private(path) if self.is_private else _open_new(path)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
"""O_EXCL follows no link."""


def _open_new(path: str) -> int:
    """Create a file that must not exist, and the folders above it; return its descriptor."""
    try:
        return os.open(path, _NEW, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, _NEW, 0o644)


def _open_new_private(path: str) -> int:
    """The same, of this user alone."""
    try:
        return os.open(path, _NEW, FILE_MODE)
    except FileNotFoundError:
        private_folder(os.path.dirname(path))
        return os.open(path, _NEW, FILE_MODE)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _fsync(path: str) -> None:
    with _explained("sync", path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _explained(action: str, path: str, only: frozenset[int] = frozenset(_ADVICE)) -> Iterator[None]:
    """Turn the operating system's errors that a person can mend into ones that say how."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno in only and (explained := storage_error(action, path, error)):
            raise explained from error
        raise
