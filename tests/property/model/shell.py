"""A driver process: it carries out what `spillway.protocol.driver` instructs, and no more.

One generator per driver. Whoever advances it may stop doing so at any yield: then the driver is
killed, or frozen and advanced again much later.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from random import Random

import numpy as np
import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.groups import GroupMap, relocations
from spillway.engine.spill.spilling import rows_of
from spillway.engine.state.arrangement import Segments
from spillway.engine.state.runs import Missing, RunFile, name_of
from spillway.engine.statistics import range_of
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Moved
from spillway.policy.victims import DEFAULT_VICTIMS
from spillway.protocol import driver as protocol
from spillway.protocol import plan as plans
from spillway.protocol.entry import missing_slots
from spillway.protocol.failing import JobFailed
from spillway.protocol.limit import intake_held
from spillway.protocol.plan import Plan
from spillway.protocol.redo import Apply
from spillway.protocol.snapshot import chosen, snapshot_of, text_digest
from spillway.protocol.state import JournalState, replay
from spillway.stream.decoding import made_again
from spillway.stream.messages import MessageSource
from spillway.stream.tasks import JobSettings, decode_task, step_tasks
from spillway_schemas.commands import Command
from spillway_schemas.filenames import turn
from spillway_schemas.journal import (
    Claim,
    Epoch,
    Genesis,
    Offsets,
    PartitionCount,
    SlotReport,
    Topic,
    entry_texts,
)
from spillway_schemas.snapshot import JournalSnapshot

from .faults import Faults
from .rules import Rules
from .slot import Blocks, Work, listed, probe, run, written_run
from .world import (
    APP,
    REJECTED,
    SPEC,
    WAREHOUSE,
    Commit,
    Conflict,
    Entry,
    Killed,
    Row,
    World,
    date,
    digest,
    hashes_of,
)

TaskRun = Generator[None, None, SlotReport]
CHANGES = 0.3
"""Drivers that come with a changed query."""
TOGETHER = 0
"""Where the engine tells of each join what moves, one word tells of all here."""
map_of = lru_cache(maxsize=64)(GroupMap)
"""One object for all that ask for the same groups: they make few assignments, and ask often."""
SETTINGS = JobSettings(
    spec=SPEC,
    streams=(),
    warehouse_id=WAREHOUSE,
    warehouse_root="",
    state_root="",
    state_key=SecretBytes(b"k"),
    executor_may_override_state_root=False,
    budget_bytes=1 << 30,
    threshold=0.9,
    fraction=0.3,
    inactive_ms=0,
    victims=DEFAULT_VICTIMS,
    reactivation="off",
    calendar="XNYS",
    kafka=MessageSource("", {}),
)


@dataclass
class Context:
    """What every process of a schedule shares."""

    world: World
    rules: Rules
    rng: Random
    faults: Faults
    quiet: bool = False
    """The end of a schedule: nothing goes wrong any more."""
    spill_rate: float = 0.3
    hung: list[tuple[str, TaskRun]] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.hung = []

    def flip(self, rate: float) -> bool:
        """Whether a fault happens."""
        return rate > 0 and not self.quiet and self.rng.random() < rate


def topics(world: World) -> list[Topic]:
    """The topics as the broker knows them now."""
    return [
        Topic(name=world.topic(i), id=f"id-{i}", partitions=len(parts))
        for i, parts in enumerate(world.log)
    ]


def written(entry: Entry) -> str:
    """The digest of an entry's text."""
    return text_digest(entry_texts(entry)[0])


class Shell:
    """One driver process."""

    def __init__(self, context: Context, name: str) -> None:
        self.context, self.world, self.name = context, context.world, name
        self.driver, self.todo = protocol.start(name, "now", query=self.changed_query())
        self.handle = 0
        """What this process's journal handle has seen: a number of entries."""
        self.running = self.main()
        self.tasks: list[tuple[str, TaskRun]] = []
        self.ready = False
        self.luck = Random(name)
        """Of snapshots, which change nothing that happens."""
        self.limits = Random(f"{name} limit")
        """Of the most results that a session may have."""
        few = not context.quiet and self.limits.random() < 0.2
        self.max_results = self.limits.choice((30, 300)) if few else 0
        self.commands_read = 0
        self.pending: list[Command] = []
        self.lost: frozenset[int] = frozenset()
        """Slots that reports of this epoch called missing."""

    def changed_query(self) -> Genesis | None:
        """Another query than the journal's, now and then: it means the same, so that results stay
        comparable, and to the protocol it is another one. None: whatever the journal says.

        The draw is its own: whether queries change, other things happen as they do.
        """
        if self.context.quiet or Random(f"{self.name} query").random() >= CHANGES:
            return None
        first, now = self.world.journal[0], topics(self.world)
        assert isinstance(first, Genesis)
        start = {topic.name: [0] * topic.partitions for topic in now}
        update = {"query": f"query of {self.name}", "topics": now, "start": start}
        return first.model_copy(update=update)

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.world.say(f"{self.name}: {text}")

    def tell(self, event: protocol.Event) -> None:
        """One event into the protocol."""
        if isinstance(event, protocol.Reported) and self.driver.plan is not None:
            self.lost = self.lost.union(missing_slots(self.driver.plan, event.reports))
        elif isinstance(event, protocol.Appended):
            self.lost = frozenset()
        self.driver, more = protocol.step(self.driver, event)
        self.todo += more

    def main(self) -> Generator[None, None, str]:
        """Carry out instructions until one says to end."""
        while True:
            if not self.todo:
                raise AssertionError(f"{self.name} has nothing to do and was not told Ready")
            instruction = self.todo.pop(0)
            match instruction:
                case protocol.ReadJournal():
                    seen = tuple(self.world.journal)
                    self.handle = len(seen)
                    yield
                    applied = self.world.applied()
                    yield
                    after, known = instruction.after, None
                    if after < 0 and (known := self.known(seen, applied)) is not None:
                        after = known.n
                    now = topics(self.world)
                    self.tell(
                        protocol.JournalRead(
                            seen[after + 1 :],
                            applied,
                            now,
                            snapshot=known,
                            max_results=self.max_results,
                        )
                    )
                case protocol.ReadHistory():
                    yield
                    state = self.driver.state
                    assert state is not None
                    epochs = [e for e in self.world.journal[: state.n + 1] if isinstance(e, Epoch)]
                    after = instruction.after_epoch
                    self.tell(protocol.HistoryRead([e for e in epochs if e.epoch > after]))
                case protocol.Look():
                    yield
                    self.tell(protocol.Looked(self.newer()))
                case protocol.Sync():
                    if self.context.rules.sync_files:
                        for file in instruction.files:
                            if file.path in self.world.store:
                                self.world.store[file.path].synced = True
                    yield
                case protocol.Append():
                    yield from self.append(instruction.entry)
                case Apply():
                    yield from self.apply(instruction)
                case protocol.RunJob():
                    yield from self.job(instruction.plan, instruction.attempt)
                case protocol.Ready():
                    self.keep()
                    yield from self.offer()
                case protocol.End():
                    return instruction.reason

    def keep(self) -> None:
        """Keep a snapshot of the journal's state, or not."""
        state = self.driver.state
        assert state is not None
        if self.luck.random() < 0.3:
            snapshot = snapshot_of(state, written(self.world.journal[state.n]))
            self.world.snapshots.append(snapshot.model_dump_json())

    def known(self, seen: Sequence[Entry], applied: dict[str, int]) -> JournalState | None:
        """The state that a snapshot holds; any of them may be damaged, or gone."""
        whole = (text for text in reversed(self.world.snapshots) if self.luck.random() < 0.7)
        found = chosen(
            map(JournalSnapshot.model_validate_json, whole),
            lambda n: written(seen[n]) if n < len(seen) else None,
            applied,
        )
        if found is not None:
            assert found == replay(seen[: found.n + 1]), "a snapshot is not the fold"
            self.say(f"begins with a snapshot of entry {found.n}")
        return found

    def newer(self) -> tuple[Claim | Epoch, ...]:
        """What others have journaled beyond this driver's last entry; its handle stays."""
        assert self.driver.state is not None
        found = self.world.journal[self.driver.state.n + 1 :]
        return tuple(entry for entry in found if not isinstance(entry, Genesis))

    def append(self, entry: Claim | Epoch) -> Generator[None, None, None]:
        """One commit to the journal: check and commit on one handle, then made durable."""
        world, context = self.world, self.context
        yield
        what = f"claim of term {entry.term}" if isinstance(entry, Claim) else f"epoch {entry.epoch}"
        unknown = context.flip(context.faults.outcome_unknown)
        if unknown and context.rng.random() < 0.5:
            self.say(f"{what} not journaled, outcome unknown")
            self.tell(protocol.Unknown("the store did not answer"))
            return
        if not context.rules.journal_accepts(world, entry, self.handle):
            self.say(f"{what} conflicts in the journal")
            self.tell(protocol.Conflict(self.newer()))
            return
        world.journal.append(entry)
        self.handle += 1
        if world.trace is not None:
            self.say(f"journal {entry.n}: {what}{told(entry)}")
        if unknown:
            self.say(f"{what} journaled, outcome unknown")
            self.tell(protocol.Unknown("the store did not answer"))
            return
        yield
        world.sync_journal(entry.n)
        self.tell(protocol.Appended())

    def apply(self, apply: Apply) -> Generator[None, None, None]:
        """One table's commit of one epoch: a no-op when its transaction is there already."""
        world, context = self.world, self.context
        table = world.tables[apply.table]
        while True:
            handle = table.snapshot()
            if table.version_of(APP, handle) >= apply.epoch:
                break
            yield
            unknown = context.flip(context.faults.outcome_unknown)
            if unknown and context.rng.random() < 0.5:
                continue
            handle = context.rules.check_then_commit(world, apply.table, APP, handle)
            try:
                table.commit(
                    handle, Commit(APP, apply.epoch, tuple(file.path for file in apply.files))
                )
            except Conflict:
                self.say(f"{apply.table} {apply.epoch} conflicts")
                continue
            self.say(f"{apply.table} has epoch {apply.epoch}")
            if not unknown:
                break
        yield
        self.tell(protocol.Applied(apply.table, apply.epoch))

    def commands(self, state: JournalState) -> list[Command]:
        """What is new in the table, and what the journal has not answered yet.

        A driver begins with those that the journal does not know to be answered.
        """
        self.commands_read = max(self.commands_read, state.commands_n + 1)
        self.pending += self.world.commands[self.commands_read :]
        self.commands_read = len(self.world.commands)
        self.pending = plans.unseen(state, self.pending)
        return list(self.pending)

    def offer(self) -> Generator[None, None, None]:
        """Wait until an epoch is worth running; say where it ends."""
        world, rng, state = self.world, self.context.rng, self.driver.state
        assert state is not None
        while True:
            self.ready = True
            yield
            self.ready = False
            if self.context.rng.random() < 0.1:
                self.tell(protocol.Looked(self.newer()))
                if self.todo:
                    return
            late = not self.context.quiet and rng.random() < 0.5
            commands = [] if late else self.commands(state)
            end = drawn_end(world, rng, state.end, generous=self.context.quiet)
            if intake_held(state):
                end = state.end
                if self.context.quiet or self.limits.random() < 0.3:
                    self.todo.append(protocol.End("somebody wants a higher limit", fenced=False))
                    return
            worth = end != state.end or plans.waits(state, commands)
            if worth or self.context.flip(0.02):
                break
        next_session = date(int(state.session.date[-2:]))
        self.say(f"offers epoch {state.epoch + 1} to {short(end)}, {len(commands)} commands")
        most = rng.choice((0, 3, 100))
        read = -1 if late else self.commands_read - 1
        again = self.luck.choice((None, None, 0, 5, 20))
        self.tell(protocol.Offered(end, commands, next_session, "now", most, read, again))

    def job(self, plan: Plan, attempt: int) -> Generator[None, None, None]:
        """One Spark job: a task per slot, all at the same time, retried where they die."""
        context, rng = self.context, self.context.rng
        trusted = self.lost & {slot for slot, manifest in plan.manifests if manifest is not None}
        assert not trusted, f"the slots {sorted(trusted)}, lost in this epoch, are trusted again"
        yield
        if plan.restore is not None and context.flip(context.faults.second_host_lost):
            index = rng.randrange(len(self.world.hosts))
            self.world.lose_host(index)
            self.say(f"host {index} lost, too")
        if plan.deferred:
            self.say(f"epoch {plan.epoch} attempt {attempt} defers {list(plan.deferred_slots)}")
        if plan.restore is not None:
            self.say(f"epoch {plan.epoch} attempt {attempt} restores {sorted(plan.restore.slots)}")
        blocks = decode(self.world, context.rules, plan)
        tasks = step_tasks(SETTINGS, plan, map_of(plan.groups), now_ms=0)
        yield from self.extract(plan, tasks, blocks, attempt)
        probes = Probes(self, tasks, blocks, max(self.world.tree.levels))
        try:
            for _ in probes.run({}):
                yield
        except Killed:
            self.tell(JobFailed("a probe failed"))
            return
        works = {
            slot: Work(task, probes.gathered(slot), context.spill_rate)
            for slot, task in tasks.items()
        }
        live: dict[int, tuple[str, int, TaskRun]] = {}
        tries = dict.fromkeys(works, 0)
        reports: list[SlotReport] = []
        for slot, work in works.items():
            live[slot] = self.launch(work, attempt)
        while live:
            if probes.given and context.flip(context.faults.host_lost_midway):
                self.world.lose_host(rng.randrange(len(self.world.hosts)))
            if lost := probes.lost():
                self.say(f"the probes of slots {sorted(lost)} are lost, and run again")
                try:
                    for _ in probes.run(probes.without(lost)):
                        pass
                except Killed:
                    self.end_tasks(live)
                    self.tell(JobFailed("a probe failed"))
                    return
                for each in [slot for slot in live if rng.random() < 0.5]:
                    self.say(f"slot {each} had not read them")
                    work = Work(tasks[each], probes.gathered(each), context.spill_rate)
                    works[each], live[each] = work, self.launch(work, attempt)
            slot = rng.choice(list(live))
            name, host, task = live[slot]
            died = True
            if context.flip(context.faults.task_hangs):
                context.hung.append((name, task))
                self.say(f"task {name} of slot {slot} hangs, retried elsewhere")
            elif context.flip(context.faults.task_killed):
                self.say(f"task {name} of slot {slot} killed")
            else:
                died = False
                try:
                    next(task)
                except StopIteration as done:
                    reports.append(done.value)
                    if done.value.status == "done":
                        self.world.placement[slot] = host
                    else:
                        self.say(f"slot {slot} on host {host} lacks {done.value.unfound}")
                        self.world.placement[slot] = rng.randrange(len(self.world.hosts))
                    del live[slot]
                except Killed:
                    self.say(f"task {name} of slot {slot} died with host {host}")
                    died = True
            if died:
                tries[slot] += 1
                if tries[slot] >= 4 or context.flip(context.faults.job_fails):
                    self.end_tasks(live)
                    self.tell(JobFailed(f"slot {slot} failed {tries[slot]} times"))
                    return
                live[slot] = self.launch(works[slot], attempt)
            self.tasks = [(name, task) for name, _, task in live.values()]
            if rng.random() < 0.4:
                yield
        self.tasks = []
        missing = any(r.status == "missing" for r in reports)
        if context.flip(context.faults.job_fails) or (
            missing and context.flip(context.faults.executors_waited_for)
        ):
            self.tell(JobFailed("the job raised"))
        else:
            rng.shuffle(reports)
            self.tell(protocol.Reported(reports, "now", {}))

    def extract(
        self, plan: Plan, tasks: dict[int, StepTask], blocks: dict[int, Blocks], attempt: int
    ) -> Generator[None, None, None]:
        """Groups that move, out of their slot's state of the epoch before, into blocks, or into
        runs in the new owner's folder where that is on the same host (and has room).

        Runs where the slot is pinned, or on a wrong host, before any step of the same job.
        """
        context, world = self.context, self.world
        moves = relocations(map_of(plan.before), map_of(plan.groups))
        for (source, target), ranges in moves.items():
            task = tasks[source]
            host = world.placement.setdefault(source, source % len(world.hosts))
            if context.flip(context.faults.extract_misplaced):
                host = context.rng.randrange(len(world.hosts))
            folder = world.hosts[host].folder(source)
            try:
                found = context.rules.load(folder, source, plan.epoch - 1, task.manifest)
            except Missing:
                self.say(f"slot {source} on host {host} gives nothing: lacks {task.manifest}")
                blocks[target].told[source, TOGETHER] = Moved(found=False)
                continue
            theirs = world.hosts[host].folder(target)
            beside = attempt == 1 and context.rules.beside(theirs.sizes(), tasks[target].manifest)
            beside = beside and context.flip(0.7)
            files: list[RunFile] = []
            given = 0
            for session in found.sessions.values():
                segments = Segments.of_ranges(ranges, session.drops)
                wanted = np.ones(len(ranges), dtype=np.bool_)
                rows = listed(rows_of(session, segments, wanted)[0])
                given += len(rows)
                if beside and rows:
                    name = f"{self.turn(attempt)}{world.fresh():09x}"
                    file = name_of(WAREHOUSE, plan.epoch, name, str(source))
                    theirs.runs[file] = written_run(file, session.name, plan.epoch, rows)
                    files.append(theirs.runs[file].file)
                else:
                    blocks[target].moved += [(session.name, row) for row in rows]
            figures = found.manifest.figures
            theirs_too = pa.array(range_of(figures, sorted(ranges, key=lambda r: r.lo)) >= 0)
            blocks[target].figures.append(figures.filter(theirs_too))
            blocks[target].told[source, TOGETHER] = Moved(True, given, tuple(files))
            self.say(f"slot {source} gives {[*ranges]} to slot {target}")
            yield

    def turn(self, job: int) -> str:
        """How attempts of one of its jobs at an epoch begin."""
        assert self.driver.state is not None
        return turn(self.driver.state.term, job)

    def launch(self, work: Work, job: int) -> tuple[str, int, TaskRun]:
        """One attempt of a task, on the host that the plan names or on a wrong one."""
        context, world = self.context, self.world
        slot = work.task.slot
        host = world.placement.setdefault(slot, slot % len(world.hosts))
        if context.flip(context.faults.task_misplaced):
            host = context.rng.randrange(len(world.hosts))
        name = f"{self.turn(job)}{world.fresh():09x}"
        seed = Random(context.rng.getrandbits(32))
        return name, host, run(world, context.rules, work, host, name, seed)

    def end_tasks(self, live: dict[int, tuple[str, int, TaskRun]]) -> None:
        """A job that failed: its other tasks are cancelled, or linger."""
        for name, _, task in live.values():
            if self.context.flip(0.3):
                self.context.hung.append((name, task))
        self.tasks = []


class Probes:
    """What the joins below the root give in an epoch's job: level by level, slot by slot.

    Where a host goes, so does what its probes gave. Spark runs them again for those who have not
    read it yet, and for nobody else.
    """

    def __init__(
        self, shell: Shell, tasks: Mapping[int, StepTask], came: Mapping[int, Blocks], height: int
    ) -> None:
        self.shell, self.tasks, self.came, self.height = shell, tasks, came, height
        self.given: dict[tuple[int, int], Blocks] = {}
        """By level and slot."""
        self.hosts: dict[int, tuple[int, int]] = {}
        """Per slot the host that its probes ran on, and that host's life."""

    def run(self, known: Mapping[tuple[int, int], Blocks]) -> Iterator[None]:
        """Run all that are not known. Raises Killed."""
        world, context = self.shell.world, self.shell.context
        self.given = dict(known)
        for level in range(1, self.height):
            made: dict[tuple[int, int], Blocks] = {}
            for slot, task in self.tasks.items():
                if (level, slot) in known:
                    continue
                host = world.placement.setdefault(slot, slot % len(world.hosts))
                if context.flip(context.faults.task_misplaced):
                    host = context.rng.randrange(len(world.hosts))
                self.hosts[slot] = host, world.hosts[host].life
                mine = self.gathered(slot)
                made[level, slot] = probe(world, context.rules, task, mine, level, host)
                if context.rng.random() < 0.2:
                    yield
            self.given |= made

    def lost(self) -> set[int]:
        """Slots whose probes' host is gone."""
        hosts = self.shell.world.hosts
        return {slot for slot, (host, life) in self.hosts.items() if hosts[host].life != life}

    def without(self, lost: Container[int]) -> dict[tuple[int, int], Blocks]:
        """What the others gave."""
        return {at: blocks for at, blocks in self.given.items() if at[1] not in lost}

    def gathered(self, slot: int) -> Blocks:
        """What came to a slot, and what the probes have given it so far."""
        came, rules = self.came[slot], self.shell.context.rules
        out = replace(
            came,
            new=[*came.new],
            restored=[*came.restored],
            replayed=[*came.replayed],
            unfound={},
        )
        groups = self.tasks[slot].groups
        for (_, giver), given in sorted(self.given.items()):
            if slot in rules.told_of_unfound(giver, self.tasks):
                out.unfound |= given.unfound
            for into, rows in ((out.new, given.new), (out.restored, given.restored)):
                into += [(s, row) for s, row in rows if owner(groups, row) == slot]
            out.replayed += [each for each in given.replayed if owner(groups, each[1]) == slot]
        return out


def owner(groups: GroupMap, row: Row) -> int:
    """The slot that a row goes to."""
    return int(groups.slot_of(hashes_of([row[1]]))[0])


def told(entry: Claim | Epoch) -> str:
    """What an entry says, in a few words."""
    if isinstance(entry, Claim):
        return f" by {entry.driver}" + (" topics grew" if entry.topics else "")
    parts = [f" to {short(entry.end)}"]
    parts += [f"cut {c.session[-2:]}:{c.range.depth}/{c.range.value}" for c in entry.cuts]
    parts += [f"void {c.session[-2:]}:{c.range.text}@{c.epoch}" for c in entry.voided]
    parts += [f"results {dict(entry.results)}"] if entry.results else []
    parts += [f"moved {m.group.depth}/{m.group.value} to {m.to}" for m in entry.moved]
    parts += [f"{len(entry.queued)} moves queued"] if entry.queued is not None else []
    parts += [f"restored {entry.restored_slots}"] if entry.restored_slots else []
    parts += [f"takes back {entry.withdrawn}"] if entry.withdrawn else []
    if entry.seal is not None:
        parts.append(f"accepts seal of {entry.seal.session} at {short(entry.seal.end)}")
    if entry.sealed is not None:
        parts.append(f"SEALED {entry.sealed.session}")
    return ", ".join(parts)


def short(offsets: Offsets) -> str:
    """Offsets for the trace."""
    return "/".join(".".join(map(str, ends)) for ends in offsets.values())


def drawn_end(world: World, rng: Random, start: Offsets, generous: bool) -> Offsets:
    """Where a batch ends: anywhere between the journal's end and Kafka's, on every partition.

    Two drivers (or two checkpoints) choose differently. A partition that was added may be
    noticed late.
    """
    out: Offsets = {}
    for topic, ends in world.ends().items():
        first = start[topic]
        seen = len(ends) if generous or rng.random() < 0.5 else len(first)
        out[topic] = []
        for p in range(max(seen, len(first))):
            at = first[p] if p < len(first) else 0
            step = 5 if generous else rng.choice((0, 1, 2, 3, 6))
            out[topic].append(min(ends[p], at + step))
    return out


def decode(world: World, rules: Rules, plan: Plan) -> dict[int, Blocks]:
    """The epoch's input as blocks per slot: new rows, and rows read again for lost slots."""
    groups = map_of(plan.groups)
    out = {slot: Blocks() for slot, _ in plan.manifests}
    task = decode_task(SETTINGS, plan, groups, ())
    for i, p, offsets, values in values_of(world, rules, plan.start, plan.end):
        topic = world.topic(i)
        teller = out[task.slot_of_partition(p)]
        teller.read.append(counted(world, i, p, offsets, values))
        bound = None if task.bound is None else task.bound[topic][p]
        rows = [world.row(i, max(v, 0), p, o) for o, v in zip(offsets, values, strict=True)]
        owners = groups.slot_of(hashes_of([row[1] for row in rows])).tolist()
        for session, mask in rules.by_session(task, bound, np.array(offsets)):
            mine = range(len(offsets)) if mask is None else np.flatnonzero(mask).tolist()
            for at in mine:
                if values[at] == REJECTED:
                    teller.rejected.append((session, (i, p, offsets[at])))
                else:
                    out[owners[at]].new.append((session, rows[at]))
    if plan.restore is None:
        return out
    task = decode_task(SETTINGS, plan, groups, (), plan.restore)
    for i, p, offsets, values in values_of(
        world, rules, plan.restore.read_from, plan.restore.read_to
    ):
        teller = out[task.slot_of_partition(p)]
        teller.read_again.append(counted(world, i, p, offsets, values))
        good = [at for at, value in enumerate(values) if value != REJECTED]
        rows = [world.row(i, values[at], p, offsets[at]) for at in good]
        hashes = hashes_of([row[1] for row in rows])
        join = world.tree.inputs[world.tree.readers[i]][0]
        where = np.array([offsets[at] for at in good], dtype=np.int64)
        owners = groups.slot_of(hashes).tolist()
        for session in plan.restore.sessions:
            kept = rules.were_held(task, session, world.topic(i), p, where, hashes)
            for each in np.flatnonzero(kept).tolist():
                out[owners[each]].restored.append((session.session, rows[each]))
            if session.replay is None or join not in session.replay.joins:
                continue
            mine, intervals = made_again(session, session.replay, world.topic(i), p, where)
            for each in np.flatnonzero(mine).tolist():
                old = session.session, rows[each], int(intervals[each])
                out[owners[each]].replayed.append(old)
    return out


def values_of(
    world: World, rules: Rules, start: Offsets, end: Offsets
) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """(leaf, partition, offsets, values) of each partition that has any between."""
    rows = world.fetch(start, end, rules.fails_on_data_loss)
    for (i, p), found in groupby(rows, key=lambda each: each[:2]):
        pairs = [(o, value) for _, _, o, value in found]
        yield i, p, [o for o, _ in pairs], [value for _, value in pairs]


def counted(world: World, i: int, p: int, offsets: list[int], values: list[int]) -> PartitionCount:
    """What was read of a partition."""
    total = sum(digest(i, p, o, value) for o, value in zip(offsets, values, strict=True))
    return PartitionCount(
        topic=world.topic(i),
        partition=p,
        rows=len(values),
        rejected=values.count(REJECTED),
        filtered=0,
        digest=total % 2**64,
    )
