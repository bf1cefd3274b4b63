"""The journal's old entries, one file a session, beside the tables.

Model: a file holds the entries `first` to `last` as rows of the journal's columns, ordered by
number; its name says which, and the digest of its bytes. What the journal's table holds no longer
is here; `Numbered` reads both as one. The entries of a session are those after the last seal, up
to and including its own.

Invariants:

* An archive is written under a fresh name, whole and durable (whatever `warehouse.fsync` says),
  before the table's commit that takes its entries out. Nothing here is ever deleted or replaced.
* A file counts only when its bytes have the digest of its name. So one that a crash has cut short
  is passed over, and is written again as long as the table has the entries.
* A session may have several files: two runs at once write one each. They hold the same entries,
  which is looked at before the table lets go of its own; the first that is whole is read.

Only who asks for entries that the table does not hold opens a file, or lists the folder.

Memory: the compressed bytes of one session to write it, one row group to read it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.engine.wire.datafile import ROW_GROUP_BYTES
from spillway.storage import Folder, StorageError
from spillway.tables.errors import DamagedArchive
from spillway.tables.rowgroups import lower, row_groups, upper
from spillway_schemas.filenames import Archived, archive_name, archive_origin

FOLDER = "archive"

LEVEL = 9
"""Of zstd. Nobody waits for it: see `docs/measured.md`."""


class Archive:
    """The archived entries of one warehouse."""

    def __init__(self, place: Folder) -> None:
        self._place = place

    def parts(self, after: int, upto: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """The entries above `after` up to `upto` with these columns, in order, a few at a time.

        Raises `DamagedArchive`.
        """
        known = self.known()
        while after < upto:
            found, data = self._whole(known, after + 1)
            for group in row_groups(archive_name(found), pa.BufferReader(data)):
                if upper(group) > after:
                    rows = group.read(schema)
                    yield rows.filter((pc.field("n") > after) & (pc.field("n") <= upto))
            after = found.last

    def known(self) -> list[Archived]:
        """What the folder's names say, in order. Raises OSError."""
        names = (archive_origin(info.name) for info in self._place.list())
        return sorted(each for each in names if each is not None)

    def keep(
        self, session: str, first: int, last: int, rows: Callable[[], Iterable[pa.Table]]
    ) -> int:
        """Make sure that a whole, durable file holds these entries; return its bytes.

        `rows` reads entries `first` to `last`, in order. Raises `DamagedArchive` for a file of
        such numbers with other entries, StorageError when the disk is full.
        """
        kept: tuple[Archived, pa.Buffer] | None = None
        for each in self.known():
            if each.last < first or last < each.first:
                continue
            if not isinstance(data := self._checked(each), pa.Buffer):
                continue
            same = (each.session, each.first, each.last) == (session, first, last)
            if not (same and _holds(data, rows())):
                raise DamagedArchive(
                    f"{self._place.path(archive_name(each))} has other entries than the journal's "
                    f"{first} to {last}: it was there before the warehouse was restored or made "
                    "anew. Move it to another place; the journal still holds its own entries"
                )
            kept = kept or (each, data)
        if kept is not None:
            self._place.sync([archive_name(kept[0])])  # its writer may have been killed
            return int(kept[1].size)
        data = _encoded(rows(), first, last)
        digest = hashlib.sha256(data).hexdigest()
        fresh = Archived(session, first, last, uuid.uuid4().hex[:12], digest)
        self._place.write_new(archive_name(fresh), data)
        self._place.sync([archive_name(fresh)])
        if isinstance(problem := self._checked(fresh), str):
            raise DamagedArchive(
                f"{self._place.path(archive_name(fresh))} was just written and {problem}: check "
                "the disk. The journal still holds its entries"
            )
        return int(data.size)

    def _whole(self, known: Iterable[Archived], n: int) -> tuple[Archived, pa.Buffer]:
        """The first whole file that has entry `n`, and its bytes."""
        problems = []
        for each in known:
            if each.first <= n <= each.last:
                if isinstance(found := self._checked(each), pa.Buffer):
                    return each, found
                problems.append(f"{self._place.path(archive_name(each))} {found}")
        what = "; ".join(problems) or f"{self._place.path()} has no file with entry {n}"
        raise DamagedArchive(
            f"archived entries of the journal cannot be read: {what}. Restore it from a backup of "
            "the warehouse. A stream that has a snapshot starts without it"
        )

    def _checked(self, archived: Archived) -> pa.Buffer | str:
        """The bytes of a file, or what is wrong with it."""
        try:
            data = self._place.map(archive_name(archived))
        except StorageError:
            raise
        except OSError as error:
            return f"cannot be read ({error})"
        if hashlib.sha256(data).hexdigest() != archived.digest:
            return "is damaged: its bytes do not have the digest that its name says"
        return data


def _encoded(rows: Iterable[pa.Table], first: int, last: int) -> pa.Buffer:
    """Entries `first` to `last` as a Parquet file. The same entries give the same bytes."""
    sink = pa.BufferOutputStream()
    count, writer = 0, None
    for group in _in_groups(rows):
        if writer is None:
            writer = pq.ParquetWriter(
                sink,
                group.schema,
                compression="zstd",
                compression_level=LEVEL,
                write_statistics=["n"],
                write_page_checksum=True,
                store_schema=False,
            )
        writer.write_table(group, row_group_size=len(group))
        count += len(group)
    if writer is None or count != last - first + 1:
        raise ValueError(f"entries {first} to {last} are not {count}")
    writer.close()
    return sink.getvalue()


def _holds(data: pa.Buffer, rows: Iterable[pa.Table]) -> bool:
    """Whether the Parquet file with these bytes has all these rows, as they are."""
    groups = row_groups("", pa.BufferReader(data))
    for some in _in_groups(rows):
        least, greatest = some["n"][0].as_py(), some["n"][-1].as_py()
        near = [each for each in groups if lower(each) <= greatest and least <= upper(each)]
        theirs = pa.concat_tables([some.slice(0, 0), *(each.read(some.schema) for each in near)])
        if not theirs.filter(pc.field("n") >= least).filter(pc.field("n") <= greatest).equals(some):
            return False
    return True


def _in_groups(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows, as many at a time as a row group should have."""
    held: list[pa.Table] = []
    held_bytes = 0
    for each in rows:
        held.append(each)
        held_bytes += each.nbytes
        if held_bytes >= ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)
