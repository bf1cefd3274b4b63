"""A driver process: it carries out what `jobs.protocol.driver` instructs, and no more.

One generator per driver. Whoever advances it may stop doing so at any yield: then the driver is
killed, or frozen and advanced again much later.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from random import Random

from jobs.engine.groups import GroupMap, relocations
from jobs.protocol import driver as protocol
from jobs.protocol import plan as plans
from jobs.protocol.failing import JobFailed
from jobs.protocol.plan import Plan
from jobs.protocol.redo import Apply
from schemas.journal import Claim, Epoch, Genesis, Offsets, PartitionCount, SlotReport, Topic

from .faults import Faults
from .rules import Rules
from .slot import Blocks, Task, run
from .world import APP, REJECTED, Commit, Conflict, Killed, World, covers, date, digest

TaskRun = Generator[None, None, SlotReport]


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
        return not self.quiet and rate > 0 and self.rng.random() < rate


def topics(world: World) -> list[Topic]:
    """The topics as the broker knows them now."""
    return [
        Topic(name=world.topic(i), id=f"id-{i}", partitions=len(parts))
        for i, parts in enumerate(world.log)
    ]


class Shell:
    """One driver process."""

    def __init__(self, context: Context, name: str) -> None:
        self.context, self.world, self.name = context, context.world, name
        self.driver, self.todo = protocol.start(name, "now")
        self.handle = 0
        """What this process's journal handle has seen: a number of entries."""
        self.running = self.main()
        self.tasks: list[tuple[str, TaskRun]] = []
        self.ready = False

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.world.say(f"{self.name}: {text}")

    def tell(self, event: protocol.Event) -> None:
        """One event into the protocol."""
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
                    entries = tuple(self.world.journal[instruction.after + 1 :])
                    self.handle = len(self.world.journal)
                    yield
                    applied = self.world.applied()
                    yield
                    self.tell(protocol.JournalRead(entries, applied, topics(self.world)))
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
                    yield from self.offer()
                case protocol.End():
                    return instruction.reason

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
            commands = [] if late else list(world.commands)
            end = drawn_end(world, rng, state.end, generous=self.context.quiet)
            worth = end != state.end or plans.waits(state, commands)
            if worth or self.context.flip(0.02):
                break
        next_session = date(int(state.session.date[-2:]))
        self.say(f"offers epoch {state.epoch + 1} to {short(end)}, {len(commands)} commands")
        most = rng.choice((0, 3, 100))
        self.tell(protocol.Offered(end, commands, next_session, "now", most))

    def job(self, plan: Plan, attempt: int) -> Generator[None, None, None]:
        """One Spark job: a task per slot, all at the same time, retried where they die."""
        context, rng = self.context, self.context.rng
        yield
        if plan.restore is not None:
            self.say(f"epoch {plan.epoch} attempt {attempt} restores {sorted(plan.restore.slots)}")
        blocks = decode(self.world, context.rules, plan)
        yield from self.extract(plan, blocks, attempt)
        tasks = {
            slot: Task(slot, plan, manifest, blocks[slot], context.spill_rate)
            for slot, manifest in plan.manifests
        }
        live: dict[int, tuple[str, int, TaskRun]] = {}
        tries = dict.fromkeys(tasks, 0)
        reports: list[SlotReport] = []
        for slot in tasks:
            live[slot] = self.launch(tasks[slot])
        while live:
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
                        self.say(f"slot {slot} on host {host} lacks {done.value.detail}")
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
                live[slot] = self.launch(tasks[slot])
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
        self, plan: Plan, blocks: dict[int, Blocks], attempt: int
    ) -> Generator[None, None, None]:
        """Groups that move, out of their slot's state of the epoch before, into blocks, or into
        a run in the new owner's folder where that is on the same host (and has room).

        Runs where the slot is pinned, or on a wrong host, before any step of the same job.
        """
        context, world = self.context, self.world
        named = dict(plan.manifests)
        for (source, target), ranges in relocations(
            GroupMap(plan.before), GroupMap(plan.groups)
        ).items():
            host = world.placement.setdefault(source, source % len(world.hosts))
            if context.flip(context.faults.extract_misplaced):
                host = context.rng.randrange(len(world.hosts))
            folder = world.hosts[host].folder(source)
            runs = context.rules.load(folder, named[source], plan.epoch)
            if runs is None:
                self.say(f"slot {source} on host {host} gives nothing: lacks {named[source]}")
                blocks[target].lacking.append(source)
                continue
            rows = [
                row
                for run_name in runs
                for row in folder.runs[run_name][1]
                if any(covers(range_, row[1][1]) for range_ in ranges)
            ]
            theirs = world.hosts[host].folder(target)
            beside = attempt == 1 and context.rules.beside(theirs, named.get(target))
            if beside and context.flip(0.7):
                run_name = f"h-{plan.epoch}-{world.fresh()}"
                theirs.runs[run_name] = (plan.epoch, rows)
                blocks[target].handed.append((source, run_name))
            else:
                blocks[target].moved += rows
            self.say(f"slot {source} gives {[*ranges]} to slot {target}")
            yield

    def launch(self, task: Task) -> tuple[str, int, TaskRun]:
        """One attempt of a task, on the host that the plan names or on a wrong one."""
        context, world = self.context, self.world
        host = world.placement.setdefault(task.slot, task.slot % len(world.hosts))
        if context.flip(context.faults.task_misplaced):
            host = context.rng.randrange(len(world.hosts))
        name = f"a{world.fresh()}"
        seed = Random(context.rng.getrandbits(32))
        return name, host, run(world, context.rules, task, host, name, seed)

    def end_tasks(self, live: dict[int, tuple[str, int, TaskRun]]) -> None:
        """A job that failed: its other tasks are cancelled, or linger."""
        for name, _, task in live.values():
            if self.context.flip(0.3):
                self.context.hung.append((name, task))
        self.tasks = []


def told(entry: Claim | Epoch) -> str:
    """What an entry says, in a few words."""
    if isinstance(entry, Claim):
        return f" by {entry.driver}" + (" topics grew" if entry.topics else "")
    parts = [f" to {short(entry.end)}"]
    parts += [f"cut {c.session[-2:]}:{c.range.depth}/{c.range.value}" for c in entry.cuts]
    parts += [f"results {dict(entry.results)}"] if entry.results else []
    parts += [f"moved {m.group.depth}/{m.group.value} to {m.to}" for m in entry.moved]
    parts += [f"{len(entry.queued)} moves queued"] if entry.queued is not None else []
    parts += [f"restored {entry.restored_slots}"] if entry.restored_slots else []
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
    owners = OwnerOf(plan)
    out = {slot: Blocks() for slot, _ in plan.manifests}
    slots = sorted(out)
    counts: dict[tuple[int, int], list[int]] = {}
    for i, p, o, value in world.read(plan.start, plan.end):
        session = rules.session_of(plan, world.topic(i), p, o)
        count(counts, i, p, o, value)
        if value == REJECTED:
            out[slots[p % len(slots)]].rejected.append((session, (i, p, o)))
        else:
            out[owners(value)].new.append((session, (i, value, p, o)))
    for (i, p), part in counts.items():
        out[slots[(i + p) % len(slots)]].read.append(counted(world, i, p, part))
    if plan.restore is None:
        return out
    counts = {}
    for i, p, o, value in world.read(plan.restore.read_from, plan.restore.read_to):
        count(counts, i, p, o, value)
        if value != REJECTED and owners(value) in plan.restore.slots:
            wanted = rules.wanted(plan.restore, world.topic(i), p, o, value)
            if wanted is not None:
                out[owners(value)].restored.append((wanted, (i, value, p, o)))
    for (i, p), part in counts.items():
        out[slots[(i + p) % len(slots)]].read_again.append(counted(world, i, p, part))
    return out


def count(counts: dict[tuple[int, int], list[int]], i: int, p: int, o: int, value: int) -> None:
    """Count one value."""
    part = counts.setdefault((i, p), [0, 0, 0])
    part[0] += 1
    part[1] += value == REJECTED
    part[2] = (part[2] + digest(i, p, o, value)) % 2**64


def counted(world: World, i: int, p: int, part: list[int]) -> PartitionCount:
    """The record of what was counted."""
    return PartitionCount(
        topic=world.topic(i),
        partition=p,
        rows=part[0],
        rejected=part[1],
        filtered=0,
        digest=part[2],
    )


class OwnerOf:
    """Which slot owns a key."""

    def __init__(self, plan: Plan) -> None:
        self.groups = plan.groups
        self.known: dict[int, int] = {}

    def __call__(self, key: int) -> int:
        if key not in self.known:
            self.known[key] = next(slot for group, slot in self.groups if covers(group, key))
        return self.known[key]
