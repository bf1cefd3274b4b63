"""The warehouse's key for the digests of state files.

A file of its own beside the tables, of 32 random bytes, 0600; in an object store, who may read the
warehouse may read it. It is made with the first stream; when it is lost the next start makes
another one. State files are only a cache: those that were written under another key are reported
missing and read again from Kafka.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

from pydantic import SecretBytes

from spillway.private import FILE_MODE, NotPrivate, open_private, refuse_link
from spillway.storage import Folder, LocalFolder

NAME = "state-key"
KEY_BYTES = 32


def state_key(place: Folder) -> SecretBytes:
    """The key in the warehouse's folder, made when there is none.

    Raises NotPrivate when it is not this user's alone or not a key; OSError when it cannot be had.
    """
    if not isinstance(place, LocalFolder):
        return _checked(_stored(place), place.path(NAME))
    path = place.path(NAME)
    if not os.path.lexists(path):
        _make(path)
    refuse_link(path)
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & 0o007:
        raise NotPrivate(
            f"{path} can be read by every user of this host, so it is no secret: delete it. A new "
            "one is made, and state is read again from Kafka"
        )
    if mode & 0o070:
        # Kubernetes gives a volume's files to the pod's group (`fsGroup`).
        os.chmod(path, FILE_MODE)
    with open(path, "rb", opener=open_private) as file:
        key = file.read(KEY_BYTES + 1)
    return _checked(key, path)


def _checked(key: bytes, path: str) -> SecretBytes:
    if len(key) != KEY_BYTES:
        raise NotPrivate(
            f"{path} is not a key of {KEY_BYTES} bytes: delete it. A new one is made, and state is "
            "read again from Kafka"
        )
    return SecretBytes(key)


def _stored(place: Folder) -> bytes:
    """The key in an object store, put there when there is none. Of two at a time one does."""
    place.assure_safe()
    try:
        return place.read(NAME)
    except FileNotFoundError:
        with suppress(FileExistsError):
            place.write_new(NAME, secrets.token_bytes(KEY_BYTES))
    return place.read(NAME)


def _make(path: str) -> None:
    """Write a whole key under its name at once. Of two at a time one does."""
    fresh = f"{path}.{secrets.token_hex(8)}"
    try:
        with open(fresh, "xb", opener=open_private) as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
    finally:
        if os.path.lexists(fresh):
            os.unlink(fresh)
