"""Run files: sorted rows of one input in one Arrow IPC file, memory-mapped.

Model: a file holds one record batch of the input's state schema, sorted by unsigned `key_hash`.
What counts of it is its *window*: the rows whose hash lies in [lo, hi] (a merge that advances
through its sources moves their windows' lower ends), minus what was dropped since it was born
(see `arrangement`). The manifest names files and windows; nothing else makes a file count.

A file may be *trimmed*: replaced, under its name and in one rename, by one without the rows that
were dead in a manifest that the journal names. They are dead in all later ones, too, so to a step
that begins from that manifest or a later one both files are the same state; one that begins from an
earlier manifest finds the file missing. So dead bytes go at once, and not an epoch after they were
copied. A trimmed file ends in a trailer: which file it was, by its digest, at which epoch the rows
were dead, and a keyed digest of all of it. A manifest goes on naming the file as it was first
written.

Invariants:

* Names begin with warehouse id, epoch and attempt, so that no two attempts share one; a file is
  written whole, and only ever trimmed, so `born` (its epoch) is in its name for ever.
* A file is used only when it is what the manifest names: of that size and keyed digest, or trimmed
  from that, at an epoch that is not after the manifest's. Digests are compared the first time that
  a process maps a file; size alone after that, because nothing but a fault of the machine changes a
  file in place: its folder is this user's alone.
* Nothing stays mapped between steps: a mapping keeps the memory of a deleted file alive, in
  every worker process that ever served the slot, and no budget would see it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.groups import I64, U64
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.state.digests import DIGEST_BYTES, is_genuine, keyed_digest
from spillway.storage import Folder

FILE_OVERHEAD_BYTES = 4096
"""More than what an IPC file of any sensible schema adds to its columns' bytes."""

_NAME = re.compile(r"(?P<warehouse>.+)-(?P<epoch>\d+)-(?P<attempt>[^-]+)-[^-]+\.(arrow|manifest)")

_TRAILER = struct.Struct(f"<8sqq{DIGEST_BYTES}s{DIGEST_BYTES}s")
"""Mark, epoch, `row_bytes`, digest of the file as it was first written, digest of all before."""
_MARK = b"trimmed\0"

_verified: set[str] = set()
"""Names (with their folders, and of trimmed files their digests) that this process has checked."""
_VERIFIED_MOST = 100_000


class Missing(Exception):
    """State that the journal names is not there, or not what was written. Says what."""


class RunFile(NamedTuple):
    """One file of a run, as the manifest names it.

    `run` is the logical run (of one session and input) that it belongs to; the windows of a
    run's files are disjoint. `bytes`, `rows`, `row_bytes` and `digest` are the whole file's, as it
    was first written.
    """

    file: str
    bytes: int
    row_bytes: int
    """Bytes of the rows alone, as `bytes_of` counts them."""
    digest: str
    """Keyed: see `digests`."""
    session: str
    input: int
    run: int
    born: int
    rows: int
    lo: int
    hi: int
    """First and last hash that counts, both included."""
    slice: int | None = None
    """Of a windowed join, that of all rows."""

    def from_hash(self, lo: int) -> RunFile | None:
        """The file with its window begun at `lo`; None when nothing is left."""
        if lo > self.hi:
            return None
        return self._replace(lo=max(self.lo, lo))


class Trimmed(NamedTuple):
    """What a trimmed file says of itself."""

    epoch: int
    """At its end the rows that were left out were dead."""
    bytes: int
    row_bytes: int
    """As those of `RunFile`, of what is left."""
    original: str
    """Digest of the file as it was first written."""
    digest: str


def name_of(warehouse_id: str, epoch: int, attempt: str, part: str, kind: str = "arrow") -> str:
    """Name of a state file; `part` tells the files of one attempt apart."""
    return f"{warehouse_id}-{epoch}-{attempt}-{part}.{kind}"


def born_of(warehouse_id: str, name: str) -> tuple[int, str] | None:
    """Epoch and attempt that wrote a state file; None when it is not a state file of ours."""
    match = _NAME.fullmatch(name)
    if match is None or match["warehouse"] != warehouse_id:
        return None
    return int(match["epoch"]), match["attempt"]


def encode_run(spec: TreeSpec, input_: int, rows: Rows) -> pa.Buffer:
    """The bytes of a run file. `rows` is sorted and not empty."""
    return _encoded(spec, input_, rows)


def encode_trimmed(
    spec: TreeSpec, file: RunFile, rows: Rows, epoch: int, key: SecretBytes
) -> tuple[pa.Buffer, Trimmed]:
    """The bytes of a run file of which only `rows` (not empty) were not dead at an epoch's end."""
    size, own = bytes_of(rows), bytes.fromhex(file.digest)
    empty = _TRAILER.pack(_MARK, epoch, size, own, bytes(DIGEST_BYTES))
    data = _encoded(spec, file.input, rows, empty)
    digest = keyed_digest(key, data.slice(0, data.size - DIGEST_BYTES))
    memoryview(data).cast("B")[-DIGEST_BYTES:] = bytes.fromhex(digest)
    return data, Trimmed(epoch, data.size, size, file.digest, digest)


def _encoded(spec: TreeSpec, input_: int, rows: Rows, trailer: bytes = b"") -> pa.Buffer:
    schema = spec.state_schema(input_)
    arrays = [pa.array(rows.key_hash), *(_one(column) for column in rows.table.columns)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    # Counted first, so that the bytes are copied once into a buffer of the right size.
    counted = pa.MockOutputStream()
    _write_ipc(counted, batch)
    buffer = pa.allocate_buffer(counted.size() + len(trailer))
    with pa.FixedSizeBufferWriter(buffer) as sink:
        _write_ipc(sink, batch)
        sink.write(trailer)
    return buffer


def _write_ipc(sink: Any, batch: pa.RecordBatch) -> None:
    options = pa.ipc.IpcWriteOptions(use_threads=False)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def map_run(
    spec: TreeSpec, folder: Folder, file: RunFile, key: SecretBytes, epoch: int
) -> tuple[Rows, Trimmed | None]:
    """Map a run file and give the rows in its window, zero-copy; and what it says if it was
    trimmed.

    `epoch`: the manifest's that names it. Raises Missing when the file is not there or its bytes
    are not those that were written.
    """
    try:
        buffer = folder.map(file.file)
    except FileNotFoundError as error:
        raise Missing(f"state file {file.file} is not there") from error
    trimmed = None
    if buffer.size == file.bytes:
        verify_digest(folder, file.file, buffer, file.digest, key)
    else:
        trimmed = _trimmed(folder, file, buffer, key, epoch)
        buffer = buffer.slice(0, buffer.size - _TRAILER.size)
    batch = pa.ipc.open_file(pa.BufferReader(buffer)).get_batch(0)
    schema = spec.state_schema(file.input)
    if batch.schema.types != schema.types or (trimmed is None and batch.num_rows != file.rows):
        raise Missing(f"state file {file.file} holds {batch.schema.names}, not {schema.names}")
    hashes: U64 = batch.column(0).to_numpy()
    first = int(np.searchsorted(hashes, np.uint64(file.lo), side="left"))
    last = int(np.searchsorted(hashes, np.uint64(file.hi), side="right"))
    table = pa.Table.from_arrays(batch.columns[1:], schema=spec.row_schema(file.input))
    rows = table.slice(first, last - first)
    return Rows(hashes[first:last], rows, born=file.born, slice=file.slice), trimmed


def _trimmed(
    folder: Folder, file: RunFile, buffer: pa.Buffer, key: SecretBytes, epoch: int
) -> Trimmed:
    """What the trailer says of a file that is not as it was first written."""
    size = buffer.size
    if size > _TRAILER.size:
        trailer = buffer.slice(size - _TRAILER.size).to_pybytes()
        mark, at, row_bytes, original, digest = _TRAILER.unpack(trailer)
        if mark == _MARK and original.hex() == file.digest:
            if at > epoch:
                raise Missing(
                    f"state file {file.file} was trimmed after epoch {at}, and that of epoch "
                    f"{epoch} is wanted"
                )
            signed = buffer.slice(0, size - DIGEST_BYTES)
            verify_digest(folder, file.file, signed, digest.hex(), key, trimmed=True)
            return Trimmed(at, size, row_bytes, original.hex(), digest.hex())
    raise Missing(f"state file {file.file} has {size} bytes instead of {file.bytes}")


def verify_digest(
    folder: Folder,
    name: str,
    buffer: pa.Buffer,
    digest: str,
    key: SecretBytes,
    *,
    trimmed: bool = False,
) -> None:
    """Check a file's keyed digest once in this process. Raises Missing when it differs."""
    known = _checked(folder.path(name), digest if trimmed else "")
    if known in _verified:
        return
    if not is_genuine(key, buffer, digest):
        raise Missing(
            f"state file {name} is damaged, or was written under another key: its digest is not "
            "the one that was written"
        )
    _note(known)


def note_verified(path: str, trimmed: Trimmed | None = None) -> None:
    """Remember that this process wrote the file at `path`, or trimmed it."""
    _note(_checked(path, trimmed.digest if trimmed else ""))


def _checked(path: str, digest: str) -> str:
    return f"{path} {digest}"


def _note(known: str) -> None:
    if len(_verified) >= _VERIFIED_MOST:
        _verified.clear()
    _verified.add(known)


_OFFSETS = {
    type_.id: np.dtype(width)
    for width, types in (
        (np.int32, (pa.string(), pa.binary())),
        (np.int64, (pa.large_string(), pa.large_binary())),
    )
    for type_ in types
}
"""The offsets of values of any length."""


def bytes_before(table: pa.Table, at: I64) -> I64:
    """Bytes of the first `at[k]` rows, int64 (k,): a slice's size is a subtraction.

    `table` has one chunk a column. Counts values and offsets; bits of nulls and booleans as
    an eighth of a byte.
    """
    bits = 0
    total = np.zeros(len(at), dtype=np.int64)
    for column in table.columns:
        type_ = column.type
        if (offset := _OFFSETS.get(type_.id)) is not None:
            total += _ends(_one(column), offset, at)
            bits += 8 * offset.itemsize
        elif type_.id != pa.lib.Type_NA:
            bits += type_.bit_width
        bits += column.null_count > 0
    return total + at * bits // 8


def bytes_of(rows: Rows) -> int:
    """Bytes of rows in a file, without the file's own overhead."""
    n = len(rows.key_hash)
    return 8 * n + int(bytes_before(rows.table, np.array([n]))[0])


def row_bytes(rows: Rows) -> I64:
    """Bytes of each row in a file, int64 (n,): together `bytes_of`."""
    each: I64 = 8 + np.diff(bytes_before(rows.table, np.arange(len(rows.key_hash) + 1)))
    return each


def merge(parts: Sequence[Rows]) -> Rows:
    """Sorted rows of several sorted ones (row tables are copied when there are two or more)."""
    filled = [part for part in parts if len(part.key_hash)]
    if len(filled) <= 1:
        return filled[0] if filled else parts[0]
    hashes = np.concatenate([part.key_hash for part in filled])
    order = np.argsort(hashes)
    index = pa.array(order)
    table = pa.concat_tables([part.table for part in filled]).combine_chunks().take(index)
    stamps = [part.kafka_ms for part in filled]
    kafka_ms = None
    if all(stamp is not None for stamp in stamps):
        kafka_ms = np.concatenate([s for s in stamps if s is not None])[order]
    slices = {part.slice for part in filled}
    return Rows(hashes[order], table, kafka_ms, slice=slices.pop() if len(slices) == 1 else None)


def joined(pieces: Sequence[Rows]) -> Rows:
    """Sorted rows of pieces in the order of their hashes (copied when there are two or more)."""
    if len(pieces) == 1:
        return pieces[0]
    hashes = np.concatenate([piece.key_hash for piece in pieces])
    table = pa.concat_tables([piece.table for piece in pieces]).combine_chunks()
    return Rows(hashes, table, slice=pieces[0].slice)


def part_of(rows: Rows, first: int, last: int) -> Rows:
    """Rows [first, last), zero-copy."""
    stamps = None if rows.kafka_ms is None else rows.kafka_ms[first:last]
    table = rows.table.slice(first, last - first)
    return Rows(rows.key_hash[first:last], table, stamps, rows.born, rows.slice)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


def _ends(array: pa.Array, dtype: Any, at: I64) -> Any:
    """Bytes of the values before each of some rows."""
    if not len(array):
        return 0
    offsets = np.frombuffer(array.buffers()[1], dtype=dtype)
    return offsets[at + array.offset].astype(np.int64) - int(offsets[array.offset])
