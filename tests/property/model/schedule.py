"""One seed, one schedule, one outcome."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

from spillway.policy.slots import rearranged
from spillway.protocol.deferral import deferred_rows
from spillway.protocol.losses import gone_from, lost_ranges, obey_losses
from spillway.protocol.offsets import greater, least, padded, reaches
from spillway.protocol.plan import unseen
from spillway.protocol.recovery import InputChanged
from spillway.protocol.state import JournalBroken, genesis_of, replay
from spillway_schemas.hash_space import spaces
from spillway_schemas.journal import Epoch, Genesis, Move, Offsets, Prefix
from tests.commands import command_of

from .check import problems, wrong
from .faults import CALM, Faults, drawn
from .keepers import cleanup, compaction, dropping, vacuum
from .rules import Rules
from .shell import Context, Shell, topics
from .world import (
    GAP,
    KEY_BITS,
    REJECTED,
    WAREHOUSE,
    DataLost,
    Host,
    Killed,
    Tree,
    World,
    date,
)

QUIET_AFTER = 900
"""Ticks after which nothing goes wrong any more."""
LOSSES = 0.004
"""How often a tick takes a partition's first rows, where people accept that."""
GIVE_UP_AFTER = 6_000
"""Ticks after which a schedule that has not come to its end has failed."""


@dataclass(frozen=True)
class Outcome:
    """How a schedule ended. `problems` is empty when all was exact."""

    seed: int
    trees: Sequence[Tree]
    lossy: bool
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    ticks: int
    epochs: int
    results: int
    restored: int
    """Epochs that restored a slot."""
    deferred: int
    """Epochs that left what a slot had lost to cleanup."""
    moved: int
    """Groups that changed their slot."""
    reshaped: int
    """Epochs that changed the groups or the number of slots."""
    cuts: int
    voided: int
    """Cuts that were taken back."""
    open_together: int
    """Epochs after which two sessions were open."""
    withdrawn: int
    """Seals that were pending and were taken back."""
    changed: int
    """Sessions that were taken up by a changed query."""
    lost: int
    """Epochs that accepted a loss."""
    noticed: str
    """What ended the stream because Kafka gives other rows than it did; empty: nothing."""


ONE = (Tree(((0, 1),)), Tree(((0, 1, 2),)))
"""One join."""
TREES = (
    Tree(((0, 1), (~0, 2))),
    Tree(((0, 1), (2, ~0))),
    Tree(((0, 1), (~0, 2), (~1, 3))),
    Tree(((0, 1), (2, 3), (~0, ~1))),
)
"""Joins of joins: left-deep, with the leaf first, of three levels, and bushy."""


def first_groups(rng: Random, slots: int, joins: int) -> list[tuple[Prefix, int]]:
    """A random prefix tree of groups, shared out so that every slot has one."""
    groups = list(spaces(joins))
    wanted = max(slots, rng.randint(1, 6))
    while len(groups) < wanted:
        group = groups.pop(rng.randrange(len(groups)))
        groups += [Prefix(group.depth + 1, group.value * 2 + bit) for bit in (0, 1)]
    rng.shuffle(groups)
    return sorted((group, i % slots) for i, group in enumerate(groups))


class Schedule:
    """The scheduler: who goes on, who dies, who freezes, who wakes up."""

    def __init__(
        self,
        seed: int,
        rules: Rules,
        faults: Faults | None = None,
        *,
        trees: Sequence[Tree] = ONE,
        lossy: bool = False,
        traced: bool = False,
    ) -> None:
        """`lossy`: Kafka loses rows, and a person accepts it; otherwise nobody does."""
        rng = self.rng = Random(seed)
        self.seed, self.trees, self.lossy = seed, trees, lossy
        self.faults = drawn(rng) if faults is None else faults
        if lossy:
            self.faults = replace(self.faults, retention=LOSSES, topic_refilled=0.0)
        tree = rng.choice(trees)
        slots = rng.choice((1, 2, 3))
        self.sessions = rng.choice((1, 2, 2, 3))
        self.quota = rng.choice((15, 24, 36))
        """Rows of a session."""
        self.keys = self.drawn_keys()
        log: list[list[list[int]]] = [
            [[GAP] * rng.randint(0, 2) for _ in range(rng.choice((1, 2)))]
            for _ in range(1 + max(each for _, each in tree.inputs))
        ]
        world = self.world = World(
            rng=rng,
            tree=tree,
            keys=self.keys,
            log=log,
            hosts=[Host() for _ in range(rng.choice((1, 2, 3)))],
            journal=[],
            trace=[] if traced else None,
        )
        world.journal.append(
            Genesis(
                warehouse_id=WAREHOUSE,
                cluster_id="c",
                topics=topics(world),
                query="q",
                session=date(0),
                start=world.ends() if rng.random() < 0.5 else zeros(world.ends()),
                start_rule="earliest",
                inputs=len(log),
                groups=first_groups(rng, slots, len(tree.joins)),
                parents=list(tree.parents),
                joins=[f"j{number}" for number in range(len(tree.joins))],
                written_at="now",
            )
        )
        self.context = Context(
            world, rules, rng, self.faults, spill_rate=rng.choice((0.05, 0.2, 0.35, 0.6))
        )
        self.produced = 0
        self.named = 0
        """Drivers, cleanups and others that were started."""
        self.drivers: list[Shell] = []
        self.frozen: list[Shell] = []
        self.keepers: list[tuple[str, Generator[None, None, None]]] = []
        self.sealing: list[tuple[int, Offsets]] = []
        """Seals that will be issued: session, E."""
        self.withdrawals: dict[str, int] = {}
        """Withdrawals by their id, each with its session, until the session is sealed anew."""
        self.folded = 0
        self.noticed = ""
        self.sealed: dict[str, Epoch] = {}
        dangers = (
            (self.faults.host_lost, self.lose_host),
            (self.faults.topic_refilled, self.refill),
            (self.faults.retention, self.retain),
            (self.faults.power_lost, self.lose_power),
            (self.faults.vacuum, self.start_vacuum),
            (self.faults.compaction, self.start_compaction),
            (self.faults.dropping, self.start_dropping),
            (self.faults.second_driver, self.start_driver),
            (self.faults.adapts, self.adapt),
            (self.faults.seal_odd, self.odd_command),
            (self.faults.seal_withdrawn, self.withdraw),
            (self.faults.partition_added, self.add_partition),
        )
        self.dangers = [(rate, happens) for rate, happens in dangers if rate > 0]
        """What may go wrong in each tick, and how often."""

    def drawn_keys(self) -> list[int]:
        """A few keys, some of them neighbours."""
        rng = self.rng
        keys = [rng.randrange(2**KEY_BITS) for _ in range(rng.choice((2, 3, 4)))]
        return [*keys, keys[0] ^ rng.choice((1, 2, 4, 8, 16, 32, 64, 128))]

    def run(self) -> Outcome:
        """Run to the end, and check."""
        tick = 0
        found: list[str] = []
        try:
            while not self.finished():
                tick += 1
                if tick > GIVE_UP_AFTER:
                    found.append(f"not finished after {tick} ticks")
                    break
                self.context.quiet = tick > QUIET_AFTER
                self.tick()
            if not found:
                self.drain()
                found += problems(self.world)
        except (InputChanged, DataLost) as e:
            self.noticed = f"{type(e).__name__}: {e}"
            tampered = self.world.replaced or (self.world.first and not self.lossy)
            found += wrong(self.world) if tampered else [self.noticed]
        except (JournalBroken, AssertionError, ValueError, KeyError, IndexError, TypeError) as e:
            found.append(f"{type(e).__name__}: {e}")
        return self.outcome(tick, found)

    def tick(self) -> None:
        """One random thing happens."""
        rng, context = self.rng, self.context
        chance = rng.random()
        if chance < 0.10:
            self.produce()
        elif chance < 0.68:
            self.advance_drivers()
        elif chance < 0.82:
            self.advance_keepers()
        elif chance < 0.89:
            self.advance_frozen(rng.choice((1, 1, 3, 10)))
        elif chance < 0.94:
            self.advance_hung()
        else:
            self.supervise()
        if not context.quiet:
            self.break_things()

    def produce(self) -> None:
        """Values into Kafka; a session's seal once its share is there."""
        rng, world = self.rng, self.world
        if self.produced < self.quota * self.sessions:
            for _ in range(rng.choice((1, 1, 2, 4))):
                parts = rng.choice(world.log)
                weird = rng.random()
                value = REJECTED if weird < 0.04 else GAP if weird < 0.08 else rng.choice(self.keys)
                rng.choice(parts).append(value)
                self.produced += 1
        due = len(self.sealing)
        if (
            due < self.sessions
            and self.produced >= self.quota * (due + 1)
            and (due == 0 or self.surely_sealed(due - 1))
        ):
            self.sealing.append((due, world.ends()))
            self.command(due, world.ends())

    def surely_sealed(self, session: int) -> bool:
        """Whether a session is sealed, and power loss cannot take that back."""
        entry = self.sealed.get(date(session))
        return entry is not None and entry.n < self.world.journal_durable

    def command(self, session: int, end: Offsets) -> None:
        """A seal in the commands table, perhaps with less than is there (read late)."""
        rng, world = self.rng, self.world
        if rng.random() < 0.3:
            end = {
                t: [max(0, e - rng.choice((0, 0, 1, 3))) for e in ends] for t, ends in end.items()
            }
        command = command_of(
            "seal", f"c{world.fresh()}", session=date(session), offsets=end, reason="close"
        )
        world.commands.append(command)
        world.say(f"command {command.id}: seal {command.session} at {end}")

    def withdraw(self) -> None:
        """The newest seal is taken back, whatever has become of it; rarely another one."""
        rng, world = self.rng, self.world
        seals = [c for c in world.commands if c.kind == "seal"]
        if not seals:
            return
        seal = seals[-1] if rng.random() < 0.9 else rng.choice(seals)
        command = command_of("withdraw", f"w{world.fresh()}", session=seal.session, seal=seal.id)
        world.commands.append(command)
        world.say(f"command {command.id}: withdraw {seal.id} of {seal.session}")
        self.withdrawals[command.id] = int(seal.session[-2:]) - 1

    def seal_anew(self) -> None:
        """A session whose seal was taken back gets another one."""
        for entry in self.world.journal if self.withdrawals else ():
            for outcome in entry.commands if isinstance(entry, Epoch) else ():
                session = self.withdrawals.pop(outcome.id, None)
                if session is not None and outcome.obeyed:
                    self.command(session, self.world.ends())

    def odd_command(self) -> None:
        """A seal that is stale, repeated under its id or another, or of a session to come."""
        rng, world = self.rng, self.world
        issued = [c for c in world.commands if c.kind == "seal" and c.session == date(0)]
        if world.commands and rng.random() < 0.3:
            world.commands.append(rng.choice(world.commands))
        elif issued or rng.random() < 0.3:
            session = rng.choice((0, 2, 3, 4)) if len(self.sealing) < 3 else 0
            if session < len(self.sealing) or session > len(self.sealed) + 1:
                self.command(session, world.ends())

    def adapt(self) -> None:
        """A command that changes the assignment, or one that must be refused."""
        rng, world = self.rng, self.world
        state = next((d.driver.state for d in self.drivers if d.driver.state), None)
        if state is None:
            return
        groups, slots = list(state.groups), len(state.slots)
        group, owner = rng.choice(groups)
        stale = rng.random() < 0.1
        version = state.assignment_version - stale if rng.random() < 0.8 else None
        kind = rng.choice(("move", "move", "move", "split", "merge", "slots", "spill", "budget"))
        given: dict[str, Any] = {}
        match kind:
            case "move":
                to = rng.randrange(slots + (rng.random() < 0.1))
                given = {"move": Move(group=group, to=to, bytes=rng.choice((0, 1, 5)))}
            case "split":
                given = {"group": group}
            case "merge":
                parent = Prefix(max(0, group.depth - 1), group.value >> 1)
                given = {"group": parent}
            case "slots":
                wanted = rng.randint(1, min(4, len(groups)))
                sizes = {g: rng.choice((0, 1, 5)) for g, _ in groups}
                given = {"slots": wanted, "moves": rearranged(groups, sizes, wanted)}
            case "spill":
                given = {"slot": owner, "bytes": rng.choice((1, 1000))}
            case "budget":
                given = {"slot": rng.randrange(slots + 1), "bytes": rng.choice((0, 1, 1000))}
        id_ = f"{rng.choice('de')}/a{world.fresh()}"
        command = command_of(kind, id_, assignment_version=version, **given)
        world.commands.append(command)
        world.say(f"command {command.id}: {kind} {given}")

    def supervise(self) -> None:
        """What restarts things: the stream when it is down, cleanup of what is sealed, vacuum."""
        rng, context = self.rng, self.context
        if not self.drivers:
            self.start_driver()
        self.look()
        self.seal_anew()
        if self.lossy and (context.quiet or rng.random() < 0.3):
            self.accept()
        for session, entry in sorted(self.sealed.items()):
            assert entry.sealed is not None
            mine = [name for name, _ in self.keepers if name.startswith(f"cleanup {session}")]
            if session in self.world.cleaned:
                continue
            if not mine or (len(mine) < 2 and context.flip(self.faults.second_cleanup)):
                name = self.name(f"cleanup {session} ")
                self.keepers.append((name, cleanup(context, entry.sealed, name)))
        if context.quiet and rng.random() < 0.05:
            self.start_vacuum()

    def accept(self) -> None:
        """A person sees what Kafka does not hold any more, and accepts that."""
        rng, world, state = self.rng, self.world, replay(self.world.journal)
        assert state is not None
        beginning = world.beginning()
        gone = gone_from(state, beginning)
        if not reaches(obey_losses(state, unseen(state, world.commands)).lost_to, gone):
            odd = not self.context.quiet and rng.random() < 0.1
            session = date(rng.randrange(3)) if odd else state.session.date
            command = command_of("accept-loss", f"l{world.fresh()}", session=session, lost_to=gone)
            world.commands.append(command)
            world.say(f"command {command.id}: accept that {session} has lost {gone}")
        for session, entry in self.sealed.items():
            assert entry.sealed is not None
            start, end = entry.sealed.start, entry.sealed.end
            again = deferred_rows(genesis_of(state, entry.sealed), entry.sealed, world.journal)
            if again is not None:
                start = least(padded(start, again.read_to), again.read_from)
                end = greater(end, again.read_to)
            if session not in world.cleaned:
                world.accepted[session] = lost_ranges(start, end, beginning)

    def look(self) -> None:
        """Which sessions the journal says are sealed."""
        self.sealed = {
            e.sealed.session: e
            for e in self.world.journal
            if isinstance(e, Epoch) and e.sealed is not None
        }

    def name(self, prefix: str) -> str:
        """A name for a process."""
        self.named += 1
        return f"{prefix}{self.named}"

    def start_driver(self) -> None:
        """A new driver process."""
        shell = Shell(self.context, self.name("D"))
        shell.say("starts")
        self.drivers.append(shell)

    def start_vacuum(self) -> None:
        """A vacuum."""
        name = self.name("vacuum ")
        self.keepers.append((name, vacuum(self.context, name)))

    def advance_drivers(self) -> None:
        """A step of a driver; then it may die or freeze."""
        if not self.drivers:
            if self.rng.random() < 0.2:
                self.start_driver()
            return
        shell = self.rng.choice(self.drivers)
        try:
            next(shell.running)
        except StopIteration as end:
            shell.say(f"ends: {end.value}")
            self.drivers.remove(shell)
            if "lost entries" in end.value:
                raise JournalBroken(end.value) from None
            return
        except DataLost as lost:
            if not self.lossy:
                raise
            shell.say(f"ends: {lost}")
            self.drivers.remove(shell)
            return
        if self.context.flip(self.faults.driver_killed):
            shell.say("killed")
            self.drivers.remove(shell)
            self.context.hung += [t for t in shell.tasks if self.rng.random() < 0.5]
        elif self.context.flip(self.faults.driver_frozen):
            shell.say("freezes")
            self.drivers.remove(shell)
            self.frozen.append(shell)

    def advance_frozen(self, steps: int) -> None:
        """A frozen driver wakes up for a while."""
        if not self.frozen:
            return
        shell = self.rng.choice(self.frozen)
        for _ in range(steps):
            try:
                next(shell.running)
            except StopIteration as end:
                shell.say(f"(was frozen) ends: {end.value}")
                self.frozen.remove(shell)
                return
            except DataLost as lost:
                if not self.lossy:
                    raise
                shell.say(f"(was frozen) ends: {lost}")
                self.frozen.remove(shell)
                return

    def advance_hung(self) -> None:
        """A task that nobody waits for any more goes on."""
        hung = self.context.hung
        if hung:
            name, task = self.rng.choice(hung)
            try:
                next(task)
            except (StopIteration, Killed) as end:
                self.world.say(f"late task {name} ends ({type(end).__name__})")
                hung.remove((name, task))

    def advance_keepers(self) -> None:
        """A step of a cleanup or a vacuum; a cleanup may be killed."""
        if not self.keepers:
            return
        name, keeper = self.rng.choice(self.keepers)
        if name.startswith("cleanup") and self.context.flip(self.faults.cleanup_killed):
            self.world.say(f"{name} killed")
            self.keepers.remove((name, keeper))
            return
        try:
            next(keeper)
        except StopIteration:
            self.keepers.remove((name, keeper))
        except DataLost as lost:
            if not self.lossy:
                raise
            self.world.say(f"{name} ends: {lost}")
            self.keepers.remove((name, keeper))

    def break_things(self) -> None:
        """Faults that come from outside."""
        chance = self.rng.random
        for rate, happens in self.dangers:
            if chance() < rate:
                happens()

    def lose_host(self) -> None:
        """A host's memory is gone."""
        index = self.rng.randrange(len(self.world.hosts))
        self.world.lose_host(index)
        self.world.say(f"host {index} lost")

    def refill(self) -> None:
        """Somebody makes a topic anew."""
        index = self.rng.randrange(len(self.world.log))
        self.world.refill(index, self.rng.randrange(len(self.world.log[index])), self.keys)

    def retain(self) -> None:
        """Kafka deletes a partition's first rows."""
        index = self.rng.randrange(len(self.world.log))
        self.world.cut(index, self.rng.randrange(len(self.world.log[index])))

    def lose_power(self) -> None:
        """Everything ends at once."""
        self.drivers, self.frozen, self.keepers = [], [], []
        self.context.hung.clear()
        self.world.lose_power()
        self.look()

    def start_compaction(self) -> None:
        """A compaction."""
        name = self.name("compaction ")
        self.keepers.append((name, compaction(self.context, name)))

    def start_dropping(self) -> None:
        """A dropping."""
        name = self.name("dropping ")
        self.keepers.append((name, dropping(self.context, name)))

    def add_partition(self) -> None:
        """A topic grows."""
        world = self.world
        parts = self.rng.choice(world.log)
        if len(parts) < 3:
            parts.append([])
            world.say(f"topic {world.log.index(parts)} has {len(parts)} partitions")

    def finished(self) -> bool:
        """Whether every session is sealed and cleaned, and a driver waits with nothing to do."""
        return (
            len(self.sealed) >= self.sessions
            and any(shell.ready for shell in self.drivers)
            and not any(name.startswith("cleanup") for name, _ in self.keepers)
            and self.world.cleaned.issuperset(self.sealed)
        )

    def drain(self) -> None:
        """Whoever was frozen or hangs wakes up now, after the end: it must do no harm."""
        self.context.quiet = True
        self.start_vacuum()
        for _ in range(400):
            if not (self.frozen or self.context.hung or self.keepers):
                break
            try:
                self.advance_frozen(3)
            except (InputChanged, DataLost):
                if not (self.world.replaced or self.world.first):
                    raise
                self.frozen = [shell for shell in self.frozen if shell.running.gi_frame]
            self.advance_hung()
            self.advance_keepers()

    def outcome(self, tick: int, found: Sequence[str]) -> Outcome:
        """The outcome with figures that show what the schedule went through."""
        epochs = [e for e in self.world.journal if isinstance(e, Epoch)]
        return Outcome(
            seed=self.seed,
            trees=self.trees,
            lossy=self.lossy,
            problems=tuple(found),
            trace=tuple(self.world.trace or ()),
            ticks=tick,
            epochs=len(epochs),
            results=sum(sum(e.results.values()) for e in epochs),
            restored=sum(bool(e.restored_slots) for e in epochs),
            deferred=sum(bool(e.deferred) for e in epochs),
            moved=sum(len(e.moved) for e in epochs),
            reshaped=sum(e.assignment is not None for e in epochs),
            cuts=sum(len(e.cuts) for e in epochs),
            voided=sum(len(e.voided) for e in epochs),
            open_together=open_together(epochs),
            withdrawn=sum(bool(e.withdrawn) for e in epochs),
            changed=sum(e.kind == "claim" and e.begins is not None for e in self.world.journal),
            lost=sum(bool(e.lost_to) for e in epochs),
            noticed=self.noticed,
        )


def open_together(epochs: Sequence[Epoch]) -> int:
    """After how many epochs two sessions were open."""
    out, pending = 0, False
    for entry in epochs:
        pending = (pending and not entry.withdrawn) or entry.seal is not None
        pending = pending and entry.sealed is None
        out += pending
    return out


def zeros(ends: Offsets) -> Offsets:
    """The same partitions, from their beginning."""
    return {topic: [0] * len(parts) for topic, parts in ends.items()}


FEW_GENERATIONS = 2
"""Of a group that may come back: so few that older ones are forgotten."""


def run(
    seed: int,
    rules: Rules | None = None,
    *,
    trees: Sequence[Tree] = ONE,
    lossy: bool = False,
    traced: bool = False,
) -> Outcome:
    """Run one schedule with the true rules, or with planted ones."""
    with ExitStack() as stack:
        for where in ("spillway.protocol.state", "spillway.engine.state.kept"):
            stack.enter_context(mock.patch(f"{where}.KEPT_GENERATIONS", FEW_GENERATIONS))
        return Schedule(seed, rules or Rules(), trees=trees, lossy=lossy, traced=traced).run()


def explain(outcome: Outcome, rules: Rules | None = None) -> str:
    """The readable story of a failing schedule (it is run again with its trace)."""
    again = run(outcome.seed, rules, trees=outcome.trees, lossy=outcome.lossy, traced=True)
    return told(again)


def told(outcome: Outcome, lines: int = 150) -> str:
    """The end of a traced schedule's story, and how to see it again."""
    story = outcome.trace[-lines:]
    options = ("" if outcome.trees is ONE else " --trees") + (" --lossy" if outcome.lossy else "")
    left = len(outcome.trace) - len(story)
    return "\n".join(
        [
            f"seed {outcome.seed} {'failed' if outcome.problems else 'was exact'}:",
            *(f"  ! {problem}" for problem in outcome.problems),
            *([f"  ended: {outcome.noticed}"] if outcome.noticed else []),
            *([f"  ... {left} lines before ..."] if left else []),
            *(f"  {line}" for line in story),
            f"again: python -m tests.property.model {outcome.seed}{options}",
        ]
    )


__all__ = ["CALM", "Outcome", "Schedule", "explain", "replay", "run", "told"]
