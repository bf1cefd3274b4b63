"""Snapshots of the journal's fold in the warehouse's folder `snapshots`: a cache, never the truth.

Model: one small file a snapshot, named by its entry and by the digest of its bytes. The newest few
stay, so finding one is a listing of a few names. A file that is damaged, cut short, of another
format or not ours is passed over, and so is a folder that cannot be written: the next start reads
more of the journal instead.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator

from pydantic import ValidationError

from jobs.storage import Folder
from schemas.filenames import snapshot_name, snapshot_origin
from schemas.snapshot import JournalSnapshot

KEPT = 3
"""The newest ones: should one be damaged, or of an entry that was lost, there is another."""


class Snapshots:
    """The snapshots of one warehouse."""

    def __init__(self, place: Folder) -> None:
        self._place = place

    def newest(self, last_n: int) -> Iterator[JournalSnapshot]:
        """Those that are whole and not above entry `last_n`, the newest first.

        None of a folder that cannot be read.
        """
        try:
            known = self._known()
        except OSError:
            return
        for n, digest in known:
            if n > last_n:
                continue
            try:
                data = self._place.read(snapshot_name(n, digest))
                if hashlib.sha256(data).hexdigest() == digest:
                    yield JournalSnapshot.model_validate_json(zlib.decompress(data))
            except (OSError, zlib.error, ValidationError):
                continue

    def write(self, snapshot: JournalSnapshot) -> None:
        """Keep a snapshot, and of the older ones the newest. Raises OSError.

        Others of this entry or above are of a journal that was repaired, or of a driver that was
        taken over: they go.
        """
        data = zlib.compress(snapshot.model_dump_json().encode(), 1)
        known, own = self._known(), (snapshot.n, hashlib.sha256(data).hexdigest())
        name = snapshot_name(*own)
        try:
            self._place.write_new(name, data)
        except FileExistsError:
            if self._place.read(name) == data:
                return
            self._place.delete(name)  # a crash has cut it short
            self._place.write_new(name, data)
        older = [each for each in known if each[0] < snapshot.n]
        for each in known:
            if each != own and each not in older[: KEPT - 1]:
                self._place.delete(snapshot_name(*each))

    def _known(self) -> list[tuple[int, str]]:
        """Entry and digest of all, the newest first. Raises OSError."""
        names = (snapshot_origin(info.name) for info in self._place.list())
        return sorted((each for each in names if each is not None), reverse=True)
