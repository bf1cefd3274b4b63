"""Files: the one small interface through which state and warehouse are read and written.

Model: a `Folder` holds immutable files under names relative to it (`a.arrow`,
`session_date=2026-01-05/7-x-0-0.parquet`). A file is written once, whole, under a name that
nobody used before; it is never changed, and only in a `StateFolder` ever replaced.
`spillway.storage.local` has folders of a file system, `spillway.storage.objects` those of an object
store.

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
"""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import replace

from spillway.private import private_folder
from spillway.storage.folders import FileInfo, Folder, StateFolder, StorageError, storage_error
from spillway.storage.local import LocalFolder, explained
from spillway_schemas.secret import Options
from spillway_schemas.stores import is_uri, scheme_of

__all__ = [
    "FileInfo",
    "Folder",
    "LocalFolder",
    "StateFolder",
    "StorageError",
    "folder",
    "private",
    "storage_error",
]


def folder(uri: str, options: Options | None = None) -> Folder:
    """Return the folder at a local path, a `file:` URI, or the URI of an object store.

    `options`: of the store, by the names of `spillway_schemas.stores`. Raises ValueError for other
    schemes and for options that no store has.
    """
    if not uri:
        raise ValueError("a folder needs a path, e.g. /var/lib/spillway; the setting is empty")
    if is_uri(uri):
        # Most processes never need its library.
        from spillway.storage.objects import object_folder

        return object_folder(uri, options or {})
    return _local(uri)


def private(uri: str) -> StateFolder:
    """Return the local folder at `uri` as one that is this user's alone; made, or checked when
    there.

    Raises `NotPrivate` for a link, for a folder that somebody else owns or may write to, and for
    one in somebody else's folder; ValueError for what is no local path.
    """
    place = _local(uri)
    with explained("make", place.root):
        private_folder(place.root, whole_way=True)
    return replace(place, is_private=True)


def _local(uri: str) -> LocalFolder:
    scheme = scheme_of(uri)
    if scheme is None:
        return LocalFolder(os.path.abspath(os.path.expanduser(uri)))
    if scheme == "file":
        parts = urllib.parse.urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{uri}: a file: URI names no host; write file:///path")
        return LocalFolder(os.path.abspath(urllib.parse.unquote(parts.path)))
    raise ValueError(
        f"{uri}: the scheme {scheme!r} is not supported here; use a local path or file:///path"
    )
