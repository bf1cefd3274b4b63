"""A slot's state folder: the manifest, loading exactly what it names, and garbage.

Model: a manifest is one Arrow IPC file. Its rows are per-group figures that no run file holds
(results, rows that came, last use, what was spilled); its schema metadata is JSON: the run
files with their windows, the drops of each session, the merges under way. The journal names one
manifest a slot and epoch; its name ends in the keyed digest of its bytes, which thus are named
too.

Failure paths:

* A manifest or a run file that is absent, damaged or neither as it was written nor trimmed from
  that raises `Missing`, which the step reports; nothing was written or deleted by then, and the
  caller never goes on with a part of the state.
* A file is checked against its digest once in a process, which then knows its name: one that is
  damaged after that, under a worker that lives, is not noticed before it is opened by another.
* Files born at or before `born_before` that the named manifest does not use are garbage.
* So are those of this very epoch that an earlier job wrote (`spillway_schemas.filenames.turn`): a
  driver runs the next one when it has thrown away what the last one reported, and whatever another
  driver was about to journal is refused since this one's claim. Else one that repeats an epoch
  would find its folder full, and spill nearly all it holds. Files of the same job stay: Spark may
  yet take the report of another of its tasks for this slot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.state.arrangement import Drops
from spillway.engine.state.digests import keyed_digest
from spillway.engine.state.kept import KEPT_TYPE
from spillway.engine.state.runs import (
    Missing,
    RunFile,
    born_of,
    name_of,
    note_verified,
    verify_digest,
)
from spillway.policy.arrivals import HORIZONS_MS
from spillway.storage import Folder
from spillway_schemas.filenames import turn_of

FORMAT = 8

FIGURES_SCHEMA = pa.schema(
    [
        pa.field("session", pa.string(), nullable=False),
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("value", pa.uint64(), nullable=False),
        pa.field("results", pa.int64(), nullable=False),
        pa.field("last_used_ms", pa.int64(), nullable=False),
        pa.field("session_results", pa.int64(), nullable=False),
        pa.field("rows_in", pa.int64(), nullable=False),
        pa.field("recent_results", pa.float64(), nullable=False),
        pa.field("recent_rows", pa.float64(), nullable=False),
        pa.field("exposure_norm", pa.float32(), nullable=False),
        pa.field("spilled_bytes", pa.int64(), nullable=False),
        pa.field("generations", pa.int64(), nullable=False),
        pa.field("final_results", pa.float64(), nullable=False),
        pa.field("downstream_bytes", pa.float64(), nullable=False),
        pa.field("first_ms", pa.int64(), nullable=False),
        pa.field("then_ms", pa.list_(pa.int64(), len(HORIZONS_MS)), nullable=False),
        pa.field("then_rows", pa.list_(pa.float32(), len(HORIZONS_MS)), nullable=False),
        pa.field("then_recent", pa.list_(pa.float32(), len(HORIZONS_MS)), nullable=False),
        pa.field("at_ms", pa.int64(), nullable=False),
        pa.field("kept", KEPT_TYPE, nullable=False),
    ]
)
"""What no run file holds of a group: see `spillway.engine.statistics.Counters`. `at_ms` is the
stream's clock at the end of the epoch; `kept` are its generations that may come back
(`spillway.engine.state.kept`)."""


class Merging(NamedTuple):
    """A merge under way: what is below the sources' windows is in the target run already."""

    session: str
    input: int
    sources: tuple[int, ...]
    target: int


NO_FIGURES = pa.Table.from_batches([], FIGURES_SCHEMA)
"""Made once, for the many manifests that have none. With an array pandas would be imported, too
(`spillway.arrow_alone`)."""


@dataclass(frozen=True)
class Manifest:
    """The state of one slot at the end of one epoch."""

    slot: int
    epoch: int
    next_run: int = 0
    """Number for the next logical run."""
    runs: tuple[RunFile, ...] = ()
    drops: Mapping[str, Drops] = field(default_factory=dict)
    """Per session; sessions without files are not kept."""
    merges: tuple[Merging, ...] = ()
    figures: pa.Table = field(default_factory=lambda: NO_FIGURES)
    evidence: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Per session what was learned of how its rows come (`spillway.policy.arrivals`)."""


def encode_manifest(manifest: Manifest) -> pa.Buffer:
    """The manifest's bytes."""
    facts = {
        "format": FORMAT,
        "slot": manifest.slot,
        "epoch": manifest.epoch,
        "next_run": manifest.next_run,
        "runs": manifest.runs,
        "drops": {session: drops.to_json() for session, drops in manifest.drops.items()},
        "merges": manifest.merges,
        "evidence": manifest.evidence,
    }
    text = json.dumps(facts, separators=(",", ":")).encode()
    schema = FIGURES_SCHEMA.with_metadata({b"spillway": text})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_table(manifest.figures.replace_schema_metadata(schema.metadata))
    return sink.getvalue()


def decode_manifest(buffer: pa.Buffer) -> Manifest:
    """The inverse of `encode_manifest`.

    Raises ValueError, KeyError or an ArrowException for a format of another version, and for bytes
    that are no manifest.
    """
    options = pa.ipc.IpcReadOptions(use_threads=False)
    try:
        figures = pa.ipc.open_file(pa.BufferReader(buffer), options=options).read_all()
    except OSError as error:  # Arrow's word for damage; nothing is read from a disk here
        raise ValueError(str(error)) from error
    facts = json.loads(figures.schema.metadata[b"spillway"])
    if facts["format"] != FORMAT:
        raise ValueError(f"a manifest of format {facts['format']} instead of {FORMAT}")
    merges = [
        Merging(session, input_, tuple(sources), target)
        for session, input_, sources, target in facts["merges"]
    ]
    return Manifest(
        slot=facts["slot"],
        epoch=facts["epoch"],
        next_run=facts["next_run"],
        runs=tuple(RunFile(*run) for run in facts["runs"]),
        drops={session: Drops.from_json(pairs) for session, pairs in facts["drops"].items()},
        merges=tuple(merges),
        figures=figures.replace_schema_metadata(None),
        evidence=facts["evidence"],
    )


def manifest_name(
    warehouse_id: str, epoch: int, attempt: str, data: pa.Buffer, key: SecretBytes
) -> str:
    """The name under which these bytes are written."""
    return name_of(warehouse_id, epoch, attempt, keyed_digest(key, data), "manifest")


def write_manifest(folder: Folder, name: str, data: pa.Buffer) -> None:
    """Write a manifest under its name."""
    folder.write_new(name, data)
    note_verified(folder.path(name))


def load_manifest(
    folder: Folder, name: str | None, sizes: Mapping[str, int], key: SecretBytes
) -> Manifest | None:
    """Load exactly the named manifest (None: None), all its files' sizes checked.

    `sizes` is a listing of the folder. Raises Missing when anything is not as it was written.
    """
    if name is None:
        return None
    if name not in sizes:
        raise Missing(f"manifest {name} is not in {folder.uri}")
    try:
        buffer = folder.map(name)
        verify_digest(folder, name, buffer, name.rsplit("-", 1)[1].split(".")[0], key)
        manifest = decode_manifest(buffer)
    except FileNotFoundError as error:
        raise Missing(f"manifest {name} is not in {folder.uri}") from error
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise Missing(f"manifest {name} cannot be read: {error}") from error
    demand(name, {run.file: run.bytes for run in manifest.runs}, sizes)
    return manifest


def demand(manifest: str, named: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Raise Missing unless a folder has every file that a manifest names, at its size or trimmed
    (see `runs`): what it is then, `map_run` looks at."""
    for file, size in named.items():
        found = sizes.get(file)
        if found is None or found > size:
            what = "is not there" if found is None else f"has {found} bytes"
            raise Missing(f"state file {file} {what}, but manifest {manifest} names {size}")


def delete_garbage(
    folder: Folder,
    warehouse_id: str,
    sizes: Mapping[str, int],
    *,
    born_before: int,
    manifest_name: str | None,
    manifest: Manifest | None,
    turn: str = "",
) -> dict[str, int]:
    """Delete files born at or before `born_before` that the manifest does not use, and those that
    jobs before `turn` wrote in the epoch after it.

    Returns name and bytes of the files that are left (others' files too: they take room).
    """
    used = {manifest_name, *(run.file for run in manifest.runs)} if manifest else set()
    gone = set(garbage(warehouse_id, sizes, born_before, used, turn))
    for name in sorted(gone):
        folder.delete(name)
    return {name: size for name, size in sizes.items() if name not in gone}


def garbage(
    warehouse_id: str,
    names: Iterable[str],
    born_before: int,
    used: Collection[str | None],
    turn: str = "",
) -> Iterator[str]:
    """Of a folder's files those to delete: ours, not `used`, born at or before `born_before`, or in
    the epoch after it in an earlier turn."""
    for name in names:
        born = born_of(warehouse_id, name)
        if born is None or name in used:
            continue
        epoch, attempt = born
        if epoch <= born_before or (epoch == born_before + 1 and turn_of(attempt) < turn):
            yield name
