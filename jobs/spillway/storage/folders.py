"""What a folder of files can do, wherever it is, and what fails."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from spillway_schemas.exits import FAILED

ADVICE = {
    errno.ENOSPC: "no space is left: free some there, or enlarge the disk",
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


def remedy(number: int | None) -> str:
    """What to do about an error of the operating system; empty where that is not known."""
    return ADVICE.get(number or 0, "").partition(": ")[2]


_TOLD = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
"""How Rust's libraries put the number of the operating system's error into their texts."""


def parts_of(name: str) -> list[str]:
    """The parts of a file's name inside a folder. Raises ValueError when it leads out of it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"not a name inside a folder: {name!r}")
    return parts


class StorageError(OSError):
    """A file operation that failed for a reason that a person can mend; says which."""

    exit_code = FAILED

    def __str__(self) -> str:
        """What happened and what to do, without the number."""
        return str(self.strerror)


class UnsafeStore(StorageError):
    """An object store that replaces what it was told to make only if it is not there."""


def storage_error(action: str, path: str, error: BaseException) -> StorageError | None:
    """What a library's error comes to when the operating system refused to `action` a path.

    None when it is about something else, or nothing that a person can mend.
    """
    if isinstance(error, StorageError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (told := _TOLD.search(str(error))):
        number = int(told[1] or told[2])
    if number not in ADVICE:
        return None
    return StorageError(number, f"cannot {action} {path}: {ADVICE[number]}")


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

    def publish(self, name: str, data: bytes) -> None:
        """Write a whole file that nobody ever sees in part. Raises FileExistsError when the name is
        taken: of several that race for it, one has written, and the others can read that."""

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

    def delete(self, *names: str) -> None:
        """Remove files; one that is not there is no error."""

    def sync(self, names: Iterable[str]) -> None:
        """Make files, and the folders' entries that lead to them, survive a loss of power."""

    def child(self, name: str) -> Folder:
        """Return the folder `name` below this one."""

    def path(self, name: str = "") -> str:
        """Return the location of a file (of the folder itself) as other libraries take it."""

    @property
    def library_options(self) -> dict[str, str] | None:
        """What other libraries (delta-rs) need beside the path, secrets included; None: nothing."""

    @property
    def is_atomic(self) -> bool:
        """Whether a file is there whole or not at all, and durable as soon as it is there: then
        none is ever torn, and a write whose answer was lost may yet arrive."""

    @property
    def patience_s(self) -> float:
        """How long a request is repeated that got no answer, or that of an overloaded server."""

    def assure_safe(self) -> None:
        """Make sure that of two who write one name only the first succeeds, and that names are
        found.

        Without that, commits would replace each other, or not be seen. Raises `UnsafeStore`.
        """

    def error_of(self, action: str, name: str, error: BaseException) -> StorageError | None:
        """What another library's error comes to when it could not `action` a file here.

        None when it is about something else, or nothing that a person can mend.
        """


class StateFolder(Folder, Protocol):
    """A folder on this host, where a file can take another one's place."""

    def child(self, name: str) -> StateFolder:
        """Return the folder `name` below this one."""

    def replace(self, name: str, by: str) -> None:
        """Put the file `by` in the place of the file `name`, in one go: who opens that finds one of
        them, whole. Raises FileNotFoundError when there is no file `by`."""
