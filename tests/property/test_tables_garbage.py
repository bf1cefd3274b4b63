"""Garbage and compaction rules under random schedules: nothing that counts is ever deleted.

A model of one table, its journal and its files: writers write files, some are journaled and
applied, some abandoned, some late; compaction merges; vacuum runs in the middle of everything, in
its three steps, with other steps in between. Every file that the table names, or that somebody
may yet commit, must exist.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.storage import FileInfo
from spillway.tables.compaction import DAY_BYTES, FAN_IN, level, plan
from spillway.tables.garbage import Settled, sort_orphans
from spillway.tables.log import ActiveFile
from spillway_schemas.filenames import (
    cleanup_name,
    compact_name,
    correct_name,
    correction_app,
    data_name,
)

DAY = "2026-01-05"


class World:
    """One data table. Time moves by one second a step."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.disk: dict[str, float] = {}
        self.named: set[str] = set()
        self.removed: dict[str, float] = {}
        self.journaled: dict[int, str] = {}
        self.applied = -1
        self.ranges: dict[int, str] = {}
        self.cleanup_applied = -1
        self.cleaned = False
        self.corrected = 0
        self.additions: dict[int, list[str]] = {}
        self.compaction = -1
        self.pending_compaction: tuple[int, str, set[str]] | None = None
        self.attempts = 0

    def fresh(self) -> str:
        self.attempts += 1
        return f"{self.attempts:012x}"

    def write(self, name: str) -> str:
        assert name not in self.disk
        self.disk[name] = self.now
        return name

    # Steps. Each is one thing that one process does.

    def run_epoch(self) -> None:
        epoch = len(self.journaled)
        if self.applied < epoch - 1:
            return  # no epoch is journaled while a table is behind
        self.journaled[epoch] = self.write(data_name(epoch, self.fresh(), 0, 0))

    def abandon_epoch(self) -> None:
        """An attempt that failed, or a zombie that is late."""
        for epoch in {len(self.journaled), max(0, len(self.journaled) - 2)}:
            self.write(data_name(epoch, self.fresh(), 0, 0))

    def apply(self) -> None:
        if self.applied < len(self.journaled) - 1:
            self.applied += 1
            self.named.add(self.journaled[self.applied])

    def compute_range(self) -> None:
        n = len(self.ranges)
        if not self.cleaned:
            self.ranges[n] = self.write(cleanup_name(DAY, n, self.fresh(), 0))

    def commit_range(self) -> None:
        n = self.cleanup_applied + 1
        if n in self.ranges and not self.cleaned:
            self.named.add(self.ranges[n])
            self.cleanup_applied = n

    def finish_cleaning(self) -> None:
        if len(self.ranges) == self.cleanup_applied + 1 > 0:
            self.cleaned = True

    def compute_correction(self) -> None:
        """Of the next revision; whoever computes it too has other files."""
        n = self.corrected + 1
        self.additions.setdefault(n, []).append(self.write(correct_name(DAY, n, self.fresh(), 0)))

    def commit_correction(self) -> None:
        if some := self.additions.get(self.corrected + 1):
            self.named.add(some[0])
            self.corrected += 1

    def begin_compaction(self) -> None:
        if self.pending_compaction is None and len(self.named) > 1:
            version = self.compaction + 1
            name = self.write(compact_name(version, self.fresh(), 0))
            self.pending_compaction = (version, name, set(self.named))

    def rival_compaction(self) -> None:
        if len(self.named) > 1:
            self.compaction += 1
            name = self.write(compact_name(self.compaction, self.fresh(), 0))
            self._replace(name, set(self.named))

    def end_compaction(self) -> None:
        if self.pending_compaction:
            version, name, files = self.pending_compaction
            self.pending_compaction = None
            if self.compaction < version:  # else refused
                self.compaction = version
                self._replace(name, files)

    def _replace(self, name: str, files: set[str]) -> None:
        self.named = (self.named - files) | {name}
        self.removed |= dict.fromkeys(files, self.now)

    # Vacuum, in its three steps.

    def settled(self) -> Settled:
        behind = self.applied < len(self.journaled) - 1
        return Settled(
            epoch=self.applied if behind else len(self.journaled) - 1,
            cleaned=frozenset({DAY} if self.cleaned else ()),
            transactions={
                "results": {"compaction": self.compaction, correction_app(DAY): self.corrected}
            },
        )

    def needed(self) -> set[str]:
        """Files that the table names, or that somebody may yet commit."""
        wanted = set(self.named)
        wanted |= {name for epoch, name in self.journaled.items() if epoch > self.applied}
        if not self.cleaned:
            wanted |= {name for n, name in self.ranges.items() if n > self.cleanup_applied}
        wanted |= {
            name for n, some in self.additions.items() if n > self.corrected for name in some
        }
        if self.pending_compaction and self.pending_compaction[0] > self.compaction:
            wanted.add(self.pending_compaction[1])
        return wanted


STEPS = [
    World.run_epoch,
    World.abandon_epoch,
    World.apply,
    World.compute_range,
    World.commit_range,
    World.finish_cleaning,
    World.compute_correction,
    World.compute_correction,
    World.commit_correction,
    World.begin_compaction,
    World.rival_compaction,
    World.end_compaction,
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=60),
    st.sampled_from([0.0, 5.0]),
)
def test_vacuum_never_takes_what_counts(steps: list[tuple[object, int]], min_age_s: float) -> None:
    """`vacuum` is interleaved: of each pair the number says which of its steps runs before."""
    world = World()
    settled: Settled | None = None
    listed: list[FileInfo] | None = None
    deleted = 0
    for step, vacuum in steps:
        world.now += 1
        if vacuum == 1 and settled is None:
            settled = world.settled()
        elif vacuum == 2 and settled is not None and listed is None:
            listed = [FileInfo(name, 1, at) for name, at in world.disk.items()]
        elif vacuum == 3 and settled is not None and listed is not None:
            found = sort_orphans(
                "results",
                listed,
                set(world.named),
                dict(world.removed),
                settled,
                now_s=world.now,
                min_age_s=min_age_s,
            )
            assert not found.foreign
            for info in found.delete:
                del world.disk[info.name]
                deleted += 1
                assert world.now - world.removed.get(info.name, 0) >= min_age_s
            settled = listed = None
        step(world)  # type: ignore[operator]
        assert world.needed() <= set(world.disk)


def test_at_rest_only_what_is_named_remains() -> None:
    """The rules are not only safe: garbage goes in the end."""
    world = World()
    for step in (*STEPS, World.run_epoch, World.apply, World.abandon_epoch, World.rival_compaction):
        step(world)
    for step in (World.apply, World.commit_range, World.finish_cleaning, World.end_compaction):
        step(world)
    world.run_epoch()
    world.apply()
    world.run_epoch()
    world.apply()
    found = sort_orphans(
        "results",
        [FileInfo(name, 1, at) for name, at in world.disk.items()],
        world.named,
        world.removed,
        world.settled(),
        now_s=world.now + 100,
        min_age_s=10,
    )
    assert {i.name for i in found.delete} == set(world.disk) - world.named
    assert found.delete


@given(
    st.lists(st.tuples(st.integers(1, 2 * DAY_BYTES), st.sampled_from(["d1", "d2"])), max_size=80),
    st.integers(2, 20),
)
def test_compaction_plans_are_sound(sizes: list[tuple[int, str]], fan_in: int) -> None:
    files = [
        ActiveFile(f"session_date={day}/{k}-a-0-0.parquet", size, 1, {"session_date": day})
        for k, (size, day) in enumerate(sizes)
    ]
    groups = plan(files, fan_in=fan_in)
    taken = [file.path for group in groups for file in group]
    assert len(taken) == len(set(taken))
    for group in groups:
        assert len(group) > 1
        assert len({tuple(f.partition.items()) for f in group}) == 1
        assert len({level(f.bytes) for f in group}) == 1
        assert sum(f.bytes for f in group) <= DAY_BYTES


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=2000))
@settings(max_examples=10, deadline=None)
def test_compaction_keeps_files_few_and_rewrites_little(sizes: list[int]) -> None:
    """Commits one after the other, compaction after each: files stay few, bytes move rarely."""
    files: list[ActiveFile] = []
    rewritten = 0
    for k, size in enumerate(sizes):
        files.append(ActiveFile(f"{k}-a-0-0.parquet", size, 1, {}))
        for group in plan(files):
            paths = {f.path for f in group}
            total = sum(f.bytes for f in group)
            rewritten += total
            files = [f for f in files if f.path not in paths]
            files.append(ActiveFile(compact_name(k, f"{k:012x}", 0), total, len(group), {}))
    levels = level(DAY_BYTES) + 1
    large = 2 * sum(sizes) // DAY_BYTES  # two that follow each other would not fit into one
    assert len(files) <= levels * FAN_IN + large
    # A merge of small files of one level may stay in that level: at most twice a level.
    assert rewritten <= 2 * levels * sum(sizes)
