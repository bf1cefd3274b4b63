"""State files carry digests that only the warehouse's key can make."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretBytes

from spillway.engine.groups import GroupMap
from spillway.engine.state import runs
from spillway.engine.state.digests import is_genuine, keyed_digest
from spillway.engine.state.statefiles import encode_manifest, load_manifest, manifest_name
from spillway.engine.step import step
from spillway.storage import folder
from spillway_schemas.journal import SlotReport
from tests.property.reference import Row
from tests.property.slots import DAYS, KEY, WAREHOUSE, Slots, key_of, narrow, spec_of

OTHER = SecretBytes(b"somebody else's key")


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """One slot with rows, at the end of epoch 0; the next process looks at its files."""
    options = {"threshold": 0.9, "inactive_ms": 1_000}
    groups = GroupMap.initial(8, 1)
    hashing = partial(narrow, 64)
    spec = spec_of(2, composite=False)
    made = Slots(spec, str(tmp_path), groups, hashing, options, 10**7)
    made.run([Row(DAYS[0], i % 2, key_of(i % 20, composite=False), 0, i) for i in range(60)])
    runs._verified.clear()
    return made


def stepped(slots: Slots, *, key: SecretBytes = KEY, manifest: str | None = None) -> SlotReport:
    task = slots.tasks(slots.plan())[0]
    task = replace(task, key=key, manifest=manifest or task.manifest)
    return step(slots.spec, task, [], slots.state(0), slots.warehouse.child)


def put(slots: Slots, name: str, data: bytes) -> None:
    slots.state(0).delete(name)
    slots.state(0).write_new(name, data)


def test_own_files_are_taken(slots: Slots) -> None:
    assert stepped(slots).status == "done"


def test_every_digit_of_a_digest_counts() -> None:
    digest = keyed_digest(KEY, b"rows")
    assert len(digest) == 32
    assert is_genuine(KEY, b"rows", digest)
    for at, digit in enumerate(digest):
        other = f"{digest[:at]}{int(digit, 16) ^ 1:x}{digest[at + 1 :]}"
        assert not is_genuine(KEY, b"rows", other)
    assert not is_genuine(KEY, b"rows", digest[:-1])


def test_a_file_that_was_checked_says_nothing_of_its_namesake(tmp_path: Path) -> None:
    digest = keyed_digest(KEY, b"rows")
    here, there = (folder(str(tmp_path)).child(name) for name in ("slot-0", "slot-1"))
    for place, data in ((here, b"rows"), (there, b"rowz")):
        place.write_new("a.arrow", data)
    runs.verify_digest(here, "a.arrow", here.map("a.arrow"), digest, KEY)
    with pytest.raises(runs.Missing, match="is damaged"):
        runs.verify_digest(there, "a.arrow", there.map("a.arrow"), digest, KEY)


@pytest.mark.parametrize("kind", ["arrow", "manifest"])
def test_a_file_with_a_bit_that_is_wrong_is_missing(slots: Slots, kind: str) -> None:
    """Whichever it is, of 60 at random: nothing of the file is believed."""
    rng = random.Random(1)
    name = next(i.name for i in slots.state(0).list() if i.name.endswith(kind))
    whole = slots.state(0).read(name)
    for _ in range(60):
        data = bytearray(whole)
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[at] ^= bit
        put(slots, name, bytes(data))
        report = stepped(slots)
        assert report.status == "missing", (at, bit)
        assert name in report.unfound[0]
        assert "damaged, or was written under another key" in report.unfound[0]
    put(slots, name, whole)
    assert stepped(slots).status == "done"


def test_files_under_another_key_are_missing(slots: Slots) -> None:
    report = stepped(slots, key=OTHER)
    assert report.status == "missing"
    assert "another key" in report.unfound[0]


def test_who_knows_all_but_the_key_forges_nothing(slots: Slots) -> None:
    """A whole state of their own, every digest right under a key of their own."""
    state, named = slots.state(0), slots.manifests[0]
    sizes = {info.name: info.bytes for info in state.list()}
    manifest = load_manifest(state, named, sizes, KEY)
    assert manifest is not None
    forged = [
        file._replace(digest=keyed_digest(OTHER, state.read(file.file))) for file in manifest.runs
    ]
    data = encode_manifest(replace(manifest, runs=tuple(forged)))
    name = manifest_name(WAREHOUSE, manifest.epoch, "f" * 16, data, OTHER)
    put(slots, name, bytes(data))
    assert stepped(slots, manifest=name).status == "missing"
    assert stepped(slots, key=OTHER, manifest=name).status == "done", "but for the key it is right"


def test_state_of_the_version_before_is_missing_and_so_restored(slots: Slots) -> None:
    """It named manifests by their CRC-32."""
    state, named = slots.state(0), slots.manifests[0]
    data = state.read(named)
    old = f"{named.rpartition('-')[0]}-{zlib.crc32(data):08x}.manifest"
    put(slots, old, data)
    report = stepped(slots, manifest=old)
    assert report.status == "missing"
    assert "another key" in report.unfound[0]


def test_the_key_shows_in_no_text_of_a_task(slots: Slots) -> None:
    task = slots.tasks(slots.plan())[0]
    secret = KEY.get_secret_value()
    for text in (repr(task), str(task), f"{task}", repr(task.key)):
        assert secret.decode() not in text
        assert secret.hex() not in text
