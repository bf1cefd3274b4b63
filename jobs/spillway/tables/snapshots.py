"""What the journal's entries add up to, kept in folders of the warehouse: a cache, never the truth.

Model: one small file a snapshot, named by its entry and by the digest of its bytes. The newest few
stay, so finding one is a listing of a few names. A file that is damaged, cut short, of another
format or not ours is passed over, and so is a folder that cannot be written: the next start reads
more of the journal instead.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar

from pydantic import ValidationError

from spillway.allocators import uncollected
from spillway.storage import Folder
from spillway_schemas.filenames import snapshot_name, snapshot_origin

JOURNAL_SNAPSHOTS = "snapshots"
"""The folder of those of the protocol's fold."""

KEPT = 3
"""The newest ones: should one be damaged, or of an entry that was lost, there is another."""


class Kept(Protocol):
    """What is kept: a pydantic model of the journal after one entry."""

    @property
    def n(self) -> int:
        """That entry."""

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> Self:
        """From JSON. Raises `pydantic.ValidationError` for another format."""

    def model_dump_json(self) -> str:
        """As JSON."""


S = TypeVar("S", bound=Kept)


class Snapshots(Generic[S]):
    """The snapshots of one kind of one warehouse."""

    def __init__(self, place: Folder, kind: type[S]) -> None:
        self._place = place
        self._kind = kind

    def newest(self, last_n: int) -> Iterator[S]:
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
                if hashlib.sha256(data).hexdigest() != digest:
                    continue
                with uncollected():
                    found = self._kind.model_validate_json(zlib.decompress(data))
            except (OSError, zlib.error, ValidationError):
                continue
            if found.n == n:  # a copy may have another name
                yield found

    def write(self, snapshot: S) -> None:
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
