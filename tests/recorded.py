"""What all policies decide in systems that a seed draws: `python -m tests.recorded` writes it anew.

Every word and figure of a decision is shown to people, and no single example asks for all.
`tests/unit/recorded/decisions.txt` holds what the policies said when they were last looked at; a
test compares. Who changes a policy records anew and reads in the difference which decisions differ.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from spillway.policy.guards import guarded
from spillway.policy.registry import POLICIES, Setting
from spillway.policy.slots import rearranged
from spillway.policy.victims import POLICIES as VICTIMS
from spillway.policy.victims import GroupFigures, VictimContext, victim_order
from spillway.policy.view import (
    Advice,
    ForceSpill,
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    Suggestion,
    View,
)
from spillway_schemas.hash_space import ROOT, spaces
from spillway_schemas.journal import Prefix

FILE = Path(__file__).parent / "unit" / "recorded" / "decisions.txt"
DRAWN = 3_000
BY_CHANCE = ("random", "bottom-up")
OF_TREES = ("local-output", "global-output", "global-output-penalty")
FOR_TREES = ("balance", "degradation")
CHAIN = (1, 2, ROOT)
ALIKE = 3
"""Decisions in the same words that are kept, for each policy."""


def view_of(seed: int, *, tree: bool = False) -> View:
    """A system: slots, groups, and how they fare. Every fourth is one in which much is alike.

    `tree`: half of them are of a query of three joins.
    """
    seen = _alike(seed) if seed % 4 == 3 else _unlike(seed)
    return _in_tree(seen) if tree and seed % 8 > 3 else seen


def _in_tree(seen: View) -> View:
    """The same figures, of groups of three joins."""
    n = max(len(seen.groups), 1)
    parts = spaces(len(CHAIN))
    groups = (parts[g * len(CHAIN) // n].part(Prefix(10, g)) for g in range(len(seen.groups)))
    return replace(seen, groups=tuple(groups), parents=CHAIN)


def _alike(seed: int) -> View:
    """Few different figures, so that many are equal, or exactly at a threshold; and many slots."""
    draw = random.Random(seed)
    slots = draw.choice([2, 2, 3, 4, 5, 20, 40])
    each = draw.choice([1, 2, 3, 4] if slots > 5 else [1, 2, 4, 8, 24])
    n = slots * each
    depth = max((n - 1).bit_length(), 1)

    def some(choices: list[int], most: int = n) -> np.ndarray:
        few = draw.sample(choices, draw.choice([1, 1, 2, 2, len(choices)]))
        return np.array([draw.choice(few) for _ in range(most)])

    known, hot = draw.random() < 0.5, draw.random() < 0.3
    sizes, budget = some([5, 10, 20, 40, 80]), draw.choice([50, 100, 200, 400, 800])
    spilled = some([0, 0, 0, 1]).astype(np.bool_)
    return View(
        groups=tuple(Prefix(depth, value) for value in range(n)),
        slot=np.arange(n) % slots if draw.random() < 0.7 else some(list(range(slots))),
        bytes=sizes,
        results=some([0, 10, 20, 40]),
        processed=some([0, 1, 5, 10, 20]),
        spilled=spilled,
        budget=np.full(slots, budget) if draw.random() < 0.7 else some([100, 200, 400], slots),
        idle_s=some([0, 1, 2, 4, 5, 6, 8, 9, 10, 11], slots).astype(np.float64),
        sampled=some([0, 100, 200], slots),
        occupancy=some([0, 1, 5, 10], slots) / 10,
        collection_s=10.0,
        since_move_s=draw.choice([45.0, 60.0, float("inf"), float("inf"), float("inf")]),
        since_forced_s=draw.choice([45.0, 60.0, float("inf"), float("inf")]),
        since_tuned_s=draw.choice([60.0, float("inf")]),
        session_bytes=draw.choice([0, 200, 20_000]),
        elapsed_s=draw.choice([1.0, 10.0, 100.0]),
        left_s=draw.choice([0.0, 10.0, 300.0]),
        forced_bytes=draw.choice([0, 20]),
        cores=draw.choice([2, 8, 64]),
        seed=seed,
        rate=some([0, 1, 2, 4]).astype(np.float64) if known else np.zeros(0),
        hot_share=some([0, 3, 9, 10]) / 10 if hot else np.zeros(0),
        hot_key=tuple(f"K{i}" for i in range(n)),
        spilled_bytes=some([10, 40]) * spilled if known else np.zeros(0, np.int64),
    )


def _unlike(seed: int) -> View:
    draw = random.Random(seed)
    slots = draw.choice([1, 2, 2, 2, 3, 4, 6])
    groups = [Prefix(3, value) for value in range(8)] if draw.random() < 0.95 else []
    for _ in range(draw.randrange(10)):
        if groups:
            cut = groups.pop(draw.randrange(len(groups)))
            groups += [Prefix(cut.depth + 1, cut.value * 2 + half) for half in (0, 1)]
    groups.sort(key=lambda group: group.lo)
    n = len(groups)
    scale = draw.choice([20, 60, 60, 120, 300])
    favoured = draw.randrange(slots)
    slot = [
        favoured if draw.random() < draw.choice([0.0, 0.5]) else draw.randrange(slots)
        for _ in range(n)
    ]

    def some(most: int, none: float) -> np.ndarray:
        return np.array(
            [0 if draw.random() < none else draw.randrange(1, most + 1) for _ in range(n)],
            dtype=np.int64,
        )

    def of_slots(choices: list[float]) -> np.ndarray:
        return np.array([draw.choice(choices) for _ in range(slots)], dtype=np.float64)

    spilled = np.array([draw.random() < 0.2 for _ in range(n)], dtype=np.bool_)
    if draw.random() < 0.6:
        spilled[:] = False
    even = draw.choice([200, 400, 1000])
    budget = [draw.choice([even, even, 2 * even, even // 2]) for _ in range(slots)]
    busy = draw.random() < 0.5
    known = draw.random() < 0.5
    return View(
        groups=tuple(groups),
        slot=np.array(slot, dtype=np.int64),
        bytes=some(scale, draw.choice([0.0, 0.1, 0.6])),
        results=some(draw.choice([10, 100, 5000]), draw.choice([0.0, 0.3])),
        processed=some(200, draw.choice([0.0, 0.1, 1.0])),
        spilled=spilled,
        budget=np.array(budget if draw.random() < 0.5 else [even] * slots, dtype=np.int64),
        idle_s=of_slots([0.0, 1.0, 4.0] if busy else [3.0, 7.0, 9.0, 9.7, 10.0]),
        sampled=np.array([draw.choice([0, 30, 100, 400]) for _ in range(slots)], dtype=np.int64),
        occupancy=of_slots([0.0, 0.005, 0.01, 0.2, 0.5, 0.7, 1.0]),
        collection_s=draw.choice([10.0, 10.0, 10.0, 10.0, 0.0]),
        since_move_s=draw.choice([5.0, 30.0, 50.0, 70.0, float("inf"), float("inf")]),
        since_forced_s=draw.choice([5.0, 45.0, float("inf")]),
        since_tuned_s=draw.choice([5.0, 60.0, float("inf")]),
        session_bytes=draw.choice([0, 300, 2000, 20_000]),
        elapsed_s=draw.choice([0.0, 0.5, 10.0, 100.0]),
        left_s=draw.choice([0.0, 10.0, 300.0]),
        forced_bytes=draw.choice([0, 0, 20, 2000]),
        cores=draw.choice([0, 2, 8]),
        seed=seed,
        rate=np.array([draw.choice([0.0, 1.0, 25.0]) for _ in range(n if known else 0)]),
        hot_share=np.array(
            [draw.choice([0.0, 0.3, 0.9, 0.95]) for _ in range(n if draw.random() < 0.3 else 0)]
        ),
        hot_key=tuple(f"K{i}" for i in range(n)),
        spilled_bytes=some(100, 0.3) * spilled if draw.random() < 0.6 else np.zeros(0, np.int64),
    )


def settings_of(seed: int) -> dict[str, Setting]:
    """What policies are told, now and then other than as it is shipped."""
    draw = random.Random(-seed - 1)
    return {
        "theta_d": draw.choice([0.8, 0.8, 0.5]),
        "min_span_s": draw.choice([45.0, 45.0, 0.0]),
        "theta_f": draw.choice([2.0, 1.2]),
        "fraction": draw.choice([0.3, 0.3, 0.9]),
        "th_imb": draw.choice([1.2, 2.0]),
        "th_util": draw.choice([0.9, 0.5]),
        "pressure": draw.choice([0.6, 0.2]),
        "relocation_bytes": draw.choice([0, 0, 40]),
        "forced_bytes": draw.choice([20, 1000, 100_000]),
        "threshold": draw.choice([0.8, 0.3]),
        "th_sup": draw.choice([0.5, 0.1]),
        "th_con": draw.choice([0.01, 0.3]),
        "beta": draw.choice([0.5, 2.0]),
        "theta_bytes": draw.choice([50, 100]),
        "groups": draw.choice([1, 8, 16]),
        "degraded": draw.choice([0.8, 0.95]),
    }


def advice_of(policy: str, seed: int) -> tuple[Advice, Advice]:
    """What a policy says of a drawn system, and what the guards leave of it."""
    seen = view_of(seed, tree=policy in FOR_TREES)
    advice = POLICIES[policy].advise(seen, settings_of(seed))
    in_rounds = POLICIES[policy].in_rounds
    gain = (0.001, 0.3)[seed % 2]
    return advice, guarded(seen, advice, 45.0, gain, 20.0 if in_rounds else None)


def told(each: Suggestion) -> str:
    """A suggestion in a line, without its reason."""
    match each:
        case MoveGroup():
            sure = "" if each.sure else ", perhaps by chance"
            return f"move {each.group.text} {each.source} to {each.to}, {each.bytes} bytes{sure}"
        case ForceSpill():
            return f"spill {each.bytes} at {each.slot}"
        case SplitGroup():
            return f"split {each.group.text}"
        case MergeGroups():
            return f"merge {each.group.text}"
        case SetSlots():
            return f"{each.slots} slots"


def lines_of(policy: str, seed: int) -> list[str]:
    """All of a decision. `+`: suggested, `-`: looked at, `|`: what the guards hold back."""
    free, kept = advice_of(policy, seed)
    lines = [f"+ {told(each)}: {each.why}" for each in free.suggestions]
    lines += [f"- {each.what}: {each.why}" for each in free.declined]
    lines += [f"| {told(each)}" for each in free.suggestions if each not in kept.suggestions]
    lines += [f"| {d.what}: {d.why}" for d in kept.declined if d not in free.declined]
    return lines


def orders_of(seed: int) -> list[str]:
    """In which order groups are spilled, and which ones move to another number of slots."""
    seen = view_of(seed)
    draw = random.Random(seed)
    used = np.array([draw.randrange(0, 4000) for _ in seen.groups], dtype=np.int64)
    loss = np.random.default_rng(seed).integers(0, 900, len(used)) * 1.0
    figures = GroupFigures(seen.bytes, seen.results, used, loss=loss)
    lines = []
    for policy in [each for each in VICTIMS if each not in BY_CHANCE + OF_TREES]:
        order = victim_order(policy, figures, VictimContext(4000, 1500, seed))
        lines.append(f"{policy}: {' '.join(map(str, order.tolist()))}")
    in_tree = np.random.default_rng(seed)
    figures = replace(
        figures,
        level=in_tree.integers(0, 3, len(used)),
        final_results=in_tree.integers(0, 30, len(used)) * 1.0,
        downstream_bytes=in_tree.integers(0, 3, len(used)) * 20.0,
    )
    for policy in OF_TREES:
        order = victim_order(policy, figures, VictimContext(4000, 1500, seed))
        lines.append(f"{policy}: {' '.join(map(str, order.tolist()))}")
    owners = list(zip(seen.groups, seen.slot.tolist(), strict=True))
    sizes = dict(zip(seen.groups, seen.bytes.tolist(), strict=True))
    for slots in sorted({1, seen.slots - 1 or 1, seen.slots + 1, seen.slots + 3}):
        if slots <= len(owners):
            moves = rearranged(owners, sizes, slots)
            said = (f"{move.group.text} to {move.to}, {move.bytes} bytes" for move in moves)
            lines.append(f"{slots} slots: {'; '.join(said)}")
    return lines


CASES: dict[str, Callable[[int], list[str]]] = {
    **{policy: (lambda seed, policy=policy: lines_of(policy, seed)) for policy in POLICIES},
    "orders": orders_of,
}


def recorded(path: Path = FILE) -> dict[tuple[str, int], list[str]]:
    """What stands in the file: lines by policy and seed."""
    found: dict[tuple[str, int], list[str]] = {}
    for part in path.read_text().strip().split("\n\n"):
        head, *lines = part.splitlines()
        policy, _, seed = head.rpartition(" ")
        found[policy, int(seed)] = lines
    return found


def chosen() -> Iterator[tuple[str, int]]:
    """Of the drawn systems those in which a policy says something that it has not often said."""
    for policy, decide in CASES.items():
        seen: Counter[str] = Counter()
        for seed in range(DRAWN if policy != "orders" else 8):
            words = {re.sub(r"[\d.,]+", "#", line) for line in decide(seed)}
            if policy == "orders" or any(seen[each] < ALIKE for each in words):
                seen.update(words)
                yield policy, seed


def main() -> None:
    """Write the file."""
    parts = ["\n".join([f"{policy} {seed}", *CASES[policy](seed)]) for policy, seed in chosen()]
    FILE.write_text("\n\n".join(parts) + "\n")
    print(f"{len(parts)} decisions in {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
