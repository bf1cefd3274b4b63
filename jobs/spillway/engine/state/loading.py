"""A slot's state as its manifest names it, mapped: where every step and every extract begins."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pydantic import SecretBytes

from spillway.engine.join.tree import TreeSpec
from spillway.engine.state.arrangement import Drops, RunWindow, SessionState
from spillway.engine.state.runs import map_run
from spillway.engine.state.statefiles import Manifest, load_manifest
from spillway.storage import Folder


@dataclass
class Loaded:
    """The named state. `sizes` lists the folder: bytes of every file by name."""

    spec: TreeSpec
    manifest: Manifest
    sizes: dict[str, int]
    next_run: int
    """Number for the next logical run."""
    sessions: dict[str, SessionState] = field(default_factory=dict)

    def session(self, name: str) -> SessionState:
        """A session's state, begun when it is new."""
        if name not in self.sessions:
            inputs = range(len(self.spec.inputs))
            self.sessions[name] = SessionState(
                name,
                self.manifest.drops.get(name, Drops()),
                parts=[[] for _ in inputs],
                installed=[[] for _ in inputs],
                new=[[] for _ in inputs],
                carried=[[] for _ in inputs],
            )
        return self.sessions[name]


def load(
    spec: TreeSpec,
    folder: Folder,
    slot: int,
    epoch: int,
    name: str | None,
    key: SecretBytes,
    joins: Collection[int] | None = None,
) -> Loaded:
    """Map exactly the state that manifest `name` names (None: an empty one of this epoch).

    `joins`: those whose rows are needed; None: all. Raises Missing
    when anything of it is not as it was written; changes nothing.
    """
    sizes = {info.name: info.bytes for info in folder.list()}
    manifest = load_manifest(folder, name, sizes, key) or Manifest(slot, epoch)
    found = Loaded(spec, manifest, sizes, manifest.next_run)
    for file in manifest.runs:
        if joins is not None and spec.operators[file.input] not in joins:
            continue
        part = RunWindow(file, *map_run(spec, folder, file, key, epoch))
        found.session(file.session).parts[file.input].append(part)
    return found
