"""Folders of a local file system: tmpfs, NVMe, a mounted volume."""

from __future__ import annotations

import errno
import os
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spillway.private import FILE_MODE, open_private, private_folder, refuse_link
from spillway.storage.folders import ADVICE, FileInfo, StorageError, parts_of, storage_error

_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What an open file's own writes fail with."""


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
        return os.path.join(self.root, *parts_of(name))

    @property
    def library_options(self) -> None:
        """Nothing: a path is enough."""
        return None

    @property
    def is_atomic(self) -> bool:
        """A loss of power may leave a torn file, or take one away."""
        return False

    @property
    def patience_s(self) -> float:
        """The system answers, or the call waits."""
        return 0.0

    def assure_safe(self) -> None:
        """The system's own `O_EXCL` and links: nothing to find out."""

    def error_of(self, action: str, name: str, error: BaseException) -> StorageError | None:
        """What a library's error comes to when the system refused to `action` a file here."""
        return storage_error(action, self.path(name), error)

    def child(self, name: str) -> LocalFolder:
        """Return the folder `name` below this one."""
        return LocalFolder(self.path(name), self.base or self.root, self.is_private)

    def write_new(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a whole file. Raises FileExistsError when the name is taken."""
        path = self.path(name)
        with explained("write", path):
            fd = self._new(path)
            try:
                with os.fdopen(fd, "wb", buffering=0) as file:
                    view = memoryview(data).cast("B")
                    while view:
                        view = view[file.write(view) :]
            except BaseException:
                _remove(path)
                raise

    def publish(self, name: str, data: bytes) -> None:
        """Write a whole file that nobody ever sees in part. Raises FileExistsError when the name is
        taken."""
        part = f"{name}.{uuid.uuid4().hex}.part"
        self.write_new(part, data)
        try:
            self.sync([part])  # or its name could outlive its bytes
            with explained("write", self.path(name)):
                os.link(self.path(part), self.path(name))
        finally:
            self.delete(part)

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a new file to write into; when the block raises, the file is removed."""
        path = self.path(name)
        with explained("write", path):
            os.close(self._new(path))
        try:
            # The name is ours now, so that opening it for writing replaces nothing.
            # Of the block's own errors only those that a write to this file can meet are
            # explained: it may touch other files as well.
            with explained("write", path, only=_WRITING), pa.OSFile(path, "wb") as sink:
                yield sink
        except BaseException:
            _remove(path)
            raise

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""
        path = self.path(name)
        opener = open_private if self.is_private else None
        with explained("read", path), open(path, "rb", opener=opener) as file:
            return file.read()

    def open(self, name: str) -> Any:
        """Return a readable, seekable `pa.NativeFile`. Raises FileNotFoundError."""
        path = self.path(name)
        with explained("read", path):
            if self.is_private:
                refuse_link(path)
            return pa.OSFile(path, "rb")

    def map(self, name: str) -> pa.Buffer:
        """Return a file's bytes as a memory map. Raises FileNotFoundError."""
        path = self.path(name)
        with explained("read", path):
            if self.is_private:
                # By its name: in a folder that is ours alone nobody exchanges it meanwhile.
                refuse_link(path)
            if os.path.getsize(path) == 0:  # nothing can be mapped
                return pa.py_buffer(b"")
            return pa.memory_map(path, "r").read_buffer()

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None when there is no such file."""
        path = self.path(name)
        with explained("read", path):
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
                with explained("list", path):
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
            with explained("list", path):
                yield from os.listdir(path)
        except FileNotFoundError:
            return

    def delete(self, *names: str) -> None:
        """Remove files; one that is not there is no error."""
        for path in map(self.path, names):
            with explained("delete", path):
                _remove(path)

    def replace(self, name: str, by: str) -> None:
        """Put the file `by` in the place of the file `name`. Raises FileNotFoundError."""
        path = self.path(name)
        with explained("write", path):
            os.replace(self.path(by), path)

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
    with explained("sync", path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def explained(action: str, path: str, only: frozenset[int] = frozenset(ADVICE)) -> Iterator[None]:
    """Turn the operating system's errors that a person can mend into ones that say how."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno in only and (told := storage_error(action, path, error)):
            raise told from error
        raise
