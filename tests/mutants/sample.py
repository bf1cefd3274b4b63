"""A random sample of mutants: `python -m tests.mutants.sample --seed 1 --size 400`.

mutmut's operators make the mutants, and its trampolines choose one while the tests run. Ours are
the sample, the order of the tests, and the count: docs/mutation.md says how and why. Ends with 1
when fewer than `--least` of them are killed.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.packages import source_paths

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "var" / "mutants" / "reach.json"
MADE = ROOT / "var" / "mutants" / "made"
TREE = ROOT / "var" / "mutants" / "tree"
PAGE = ROOT / "docs" / "mutation.md"
MUTATED = (
    "jobs/spillway/protocol/*.py",
    *(
        f"jobs/spillway/engine/{name}.py"
        for name in (
            *(
                "step",
                "join/kernel",
                "spill/cleanup",
                "spill/pieces",
                "spill/source",
                "spill/spilling",
                "relocation",
            ),
            *("state/merging", "state/arrangement", "intake", "state/statefiles"),
        )
    ),
    "jobs/spillway/stream/*.py",
    "jobs/spillway/policy/*.py",
    "jobs/spillway/decode/*.py",
    "jobs/spillway/verify/*.py",
    "jobs/spillway/sealed_input/*.py",
    "jobs/spillway/sealing.py",
)
SPARK = re.compile(
    r"^\s*(?:from|import) "
    r"(?:pyspark|delta|spillway.stream.session|spillway.(?:verify|sealed_input).(?:rows|frames))\b",
    re.M,
)
"""Modules that speak to Spark or start it are for the tests that do."""
OURS = re.compile(
    r"\bspillway(?:\.| import .*\b)"
    r"(?:protocol|engine|stream|policy|decode|verify|sealed_input|sealing)\b"
)
"""In the test files that are asked; a test file of containers says nothing here."""
PASSED, FAILED, NOT_COLLECTED, NOT_CONFIGURED = 0, 1, 2, 4
"""What pytest ends with. A test file that cannot be loaded is noticed as a failed test is; where
modules were loaded with the mutant, also what all test files have in common."""
STARTS = 4
TIMES_UP = (-signal.SIGXCPU, -signal.SIGKILL)


@dataclass(frozen=True)
class Mutant:
    """One change of one function."""

    name: str
    """mutmut's: module, function, number."""
    file: str
    diff: tuple[str, ...]
    """The lines that go and come, with `-` and `+` before them."""

    @property
    def function(self) -> str:
        """As mutmut names it: module and function."""
        return self.name.partition("__mutmut_")[0]

    @property
    def place(self) -> str:
        """The same as Python names it."""
        return re.sub(r"\.x_", ".", self.function).replace(".xǁ", ".").replace("ǁ", ".")

    @property
    def change(self) -> tuple[str, str, str]:
        """What the list of equivalent changes says of it."""
        old = "\n".join(line[1:].strip() for line in self.diff if line.startswith("-"))
        new = "\n".join(line[1:].strip() for line in self.diff if line.startswith("+"))
        return self.place, old, new


def mutated_files(tree: Path = ROOT) -> list[Path]:
    """What is mutated, relative to the tree."""
    found = sorted(path for pattern in MUTATED for path in tree.glob(pattern))
    return [path.relative_to(tree) for path in found if not SPARK.search(path.read_text())]


def mutate(files: Sequence[Path]) -> list[dict[str, Any]]:
    """For each file its code with all mutants, and for each mutant its name and difference."""
    MADE.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        return pool.map(_made, files, chunksize=1)


def _made(file: Path) -> dict[str, Any]:
    """Made once, and kept until the file changes."""
    source = (ROOT / file).read_text()
    key = f"{importlib.metadata.version('mutmut')} {file} {source}"
    kept = MADE / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    if kept.exists():
        answer: dict[str, Any] = json.loads(kept.read_text())
        return answer
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    made = mutate_file_contents(str(file), source)
    lines = made.code.splitlines()
    mutants = []
    for name in made.mutant_names:
        before, after = (
            _body(lines, made.line_span_by_function_name[each], each)
            for each in (f"{name.partition('__mutmut_')[0]}__mutmut_orig", name)
        )
        changed = difflib.unified_diff(before, after, lineterm="", n=0)
        diff = [line for line in changed if not re.match(r"---|\+\+\+|@@", line)]
        mutants.append((get_mutant_name(file.relative_to("jobs"), name), diff))
    answer = {"code": made.code, "mutants": mutants}
    kept.write_text(json.dumps(answer))
    return answer


def _body(lines: Sequence[str], span: Any, name: str) -> list[str]:
    return [line.replace(name, "_") for line in lines[span.start - 1 : span.end]]


def listed(root: Path) -> set[Path]:
    """What git knows of a tree, and what it would."""
    found = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {Path(name) for name in found.split("\0") if name and (root / name).is_file()}


def laid_out(tree: Path) -> list[Mutant]:
    """Make a copy of our tree, with all mutants of what is mutated in it; none is active.

    What is there already and has not changed stays as it is, and keeps its byte code.
    """
    files = mutated_files()
    mutants = []
    names = listed(ROOT)
    if tree.exists():
        there = {p.relative_to(tree) for p in tree.rglob("*") if p.is_file()}
        for name in there - names:
            if "__pycache__" not in name.parts:
                (tree / name).unlink()
    for name in names - set(files):
        _put(tree / name, (ROOT / name).read_bytes())
    for file, made in zip(files, mutate(files), strict=True):
        _put(tree / file, made["code"].encode())
        mutants += [Mutant(name, str(file), tuple(diff)) for name, diff in made["mutants"]]
    return mutants


def _put(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def wilson(killed: int, tried: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share, with 95 % confidence (Wilson's score)."""
    if not tried:
        return 0.0, 1.0
    share = killed / tried
    middle = share + z * z / (2 * tried)
    half = z * math.sqrt(share * (1 - share) / tried + z * z / (4 * tried * tried))
    whole = 1 + z * z / tried
    return (middle - half) / whole, (middle + half) / whole


@cache
def is_near(file: str, module: str) -> bool:
    """Whether a test file is of a module: it names it, or tests properties."""
    package, _, name = module.rpartition(".")
    imported = rf"\b{package}\b(?:\.| import [^\n]*\b){name}\b"
    return file.startswith("tests/property/") or re.search(imported, _text(file)) is not None


@cache
def _text(file: str) -> str:
    """Of a test file, and of the helpers that it imports."""
    path = ROOT / file
    text = path.read_text() if path.exists() else ""
    helpers = re.findall(r"^from (tests\.[\w.]+) import", text, re.M)
    files = [ROOT / f"{helper.replace('.', '/')}.py" for helper in helpers]
    return text + "".join(each.read_text() for each in files if each.exists())


@dataclass(frozen=True)
class Reached:
    """Which tests call a function, by what they were seen to do without a mutant."""

    tests: Mapping[str, tuple[float, Sequence[str]]]
    failed: frozenset[str]
    at_import: frozenset[str]
    is_near: Callable[[str, str], bool] = is_near

    def of(self, function: str, most_s: float) -> tuple[list[str], float, bool]:
        """Tests that reach a function, no more than `most_s` of them: their names, how long they
        take, and whether they are all.

        Files that name the function's module come first, and property tests, and of these those
        that take the least time. What is called when a module is loaded is reached by all tests
        that call its module.
        """
        module = re.sub(r"\.x[^.]*$", "", function)
        at_import = function in self.at_import
        mine: dict[tuple[bool, str], list[tuple[float, str]]] = {}
        for name, (seconds, functions) in self.tests.items():
            if name not in self.failed and (
                function in functions
                or (at_import and any(each.startswith(f"{module}.x") for each in functions))
            ):
                file = name.partition("::")[0]
                mine.setdefault((not self.is_near(file, module), file), []).append((seconds, name))
        chosen: list[str] = []
        total = 0.0
        whole = True
        # A file of few seconds first; of a file the quickest first.
        for _, tests in sorted(
            mine.items(), key=lambda each: (each[0][0], sum(s for s, _ in each[1]), each[0][1])
        ):
            for seconds, name in sorted(tests):
                if chosen and total + seconds > most_s:
                    whole = False
                    break
                chosen.append(name)
                total += seconds
        return chosen, total, whole


def digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Of names and contents."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def reached(tree: Path, jobs: int, trust: bool) -> Reached:
    """Run the tests that have changed since they were last seen, all of them when the code has."""
    every = sorted(
        (ROOT / "tests").rglob("test_*.py"), key=lambda path: ("unit" not in path.parts, path)
    )
    files = [path for path in every if "property" in path.parts or OURS.search(path.read_text())]
    ours = [p for d in ("jobs", "schemas", "plugins", "benchmarks") for p in (ROOT / d).rglob("*")]
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if path not in every]
    code = digest(path for path in [*ours, *helpers] if path.suffix in (".py", ".toml"))
    known: dict[str, Any] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    if known.get("code") != code and not (trust and known):
        known = {"code": code, "files": {}, "tests": {}, "failed": [], "at_import": []}
    now = {str(path.relative_to(ROOT)): digest([path]) for path in files}
    stale = [name for name in now if known["files"].get(name) != now[name]]
    gone = set(known["files"]) - set(now) | set(stale)
    known["tests"] = {n: t for n, t in known["tests"].items() if n.partition("::")[0] not in gone}
    known["failed"] = [n for n in known["failed"] if n.partition("::")[0] not in gone]
    known["files"] = {name: now[name] for name in now if name not in stale}
    print(f"which functions the tests of {len(stale)} files reach …", flush=True)
    answers = [tree / f".reach-{i}.json" for i in range(len(stale))]
    place = dict(zip(stale, answers, strict=True))
    work = [{"name": n, "answer": str(place[n]), "wall_s": 3600} for n in stale]
    for number, answer in enumerate(worked(tree, work, jobs) if work else ()):
        if "at_import" in answer:
            known["at_import"] = answer["at_import"]
            continue
        name = answer["name"]
        if answer["code"] != PASSED:
            sys.exit(f"{name} cannot be run in the mutated tree (it ended with {answer['code']})")
        new = json.loads(place[name].read_text())
        known["tests"] |= new["tests"]
        known["failed"] += new["failed"]
        known["files"][name] = now[name]
        print(f"[{number}/{len(stale)}] {name} ({answer['seconds']:.0f} s)", flush=True)
        KNOWN.parent.mkdir(parents=True, exist_ok=True)
        KNOWN.write_text(json.dumps(known))
    return Reached(known["tests"], frozenset(known["failed"]), frozenset(known["at_import"]))


def worked(tree: Path, work: Sequence[dict[str, Any]], jobs: int) -> Iterator[dict[str, Any]]:
    """Let `tests.mutants.worker` do work in a tree: its answers as they come.

    Who kills that process by mistake loses what is under way: it is done again, by a new one.
    """
    left = {each["name"]: each for each in work}
    for _ in range(STARTS):
        process = _worker(tree, list(left.values()), jobs)
        try:
            assert process.stdout is not None
            for answer in map(json.loads, process.stdout):
                left.pop(answer.get("name"), None)
                yield answer
        finally:
            if process.poll() is None:
                process.terminate()
        code = process.wait()
        if not code:
            return
        print(f"the process of the tests has ended with {code}", flush=True)
        if code > 0:
            break
    sys.exit("the tests cannot be run in the mutated tree (their error is above)")


def _worker(tree: Path, work: Sequence[dict[str, Any]], jobs: int) -> subprocess.Popen[str]:
    (tree / ".work.json").write_text(json.dumps({"work": work, "jobs": jobs}))
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.mutants.worker", ".work.json"],
        cwd=tree,
        env=environment | {"CI": "true", "PYTHONPATH": ":".join(source_paths(str(tree)))},
        stdout=subprocess.PIPE,
        text=True,
    )


def tried(
    tree: Path, mutants: Sequence[Mutant], known: Reached, jobs: int, most_s: float
) -> Iterator[tuple[str, str, float]]:
    """The verdict of each mutant as it comes, and how long it took."""
    work = []
    whole: dict[str, bool] = {}
    anew: dict[str, bool] = {}
    for mutant in mutants:
        tests, seconds, all_of_them = known.of(mutant.function, most_s)
        if not tests:
            yield mutant.name, "SURVIVED: no test calls its function", 0.0
            continue
        whole[mutant.name] = all_of_them
        limits = {"cpu_s": int(20 + 5 * seconds), "wall_s": 120 + 20 * seconds}
        anew[mutant.name] = mutant.function in known.at_import
        how = {"anew": anew[mutant.name], **limits}
        work.append({"name": mutant.name, "tests": tests, **how})
    for answer in worked(tree, work, jobs):
        if "code" in answer:
            name = answer["name"]
            verdict = judged(answer["code"], whole[name], most_s, anew[name])
            yield name, verdict, answer["seconds"]


def judged(code: int, all_of_them: bool, most_s: float, anew: bool = False) -> str:
    """The verdict by what pytest ends with. `anew`: modules were loaded with the mutant."""
    if code == PASSED:
        return "SURVIVED" if all_of_them else f"SURVIVED {most_s:.0f} s of tests"
    if code == FAILED:
        return "killed"
    if code == NOT_COLLECTED or (anew and code == NOT_CONFIGURED):
        return "killed (its tests cannot be loaded)"
    if code in TIMES_UP:
        return "killed (it hangs)"
    if code < 0:
        return f"killed (signal {-code})"
    return f"NOT RUN (pytest ended with {code})"


def equivalents(path: Path = PAGE) -> set[tuple[str, str, str]]:
    """The changes that change nothing, of the page: where, the old lines, the new ones."""
    blocks = re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.M | re.S)
    entries = [each for block in blocks for each in tomllib.loads(block).get("equivalent", [])]
    return {(each["in"], each["old"].strip(), each["new"].strip()) for each in entries}


def percent(killed: int, of: int) -> str:
    """A share with its interval, in words."""
    low, high = wilson(killed, of)
    return f"{killed} of {of} = {killed / max(of, 1):.1%} (95 % interval {low:.1%} to {high:.1%})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try a sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these, by mutmut's name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=400, help="0: all")
    parser.add_argument("--least", type=float, default=95.0, help="percent that must be killed")
    parser.add_argument("--most-s", type=float, default=60.0, help="of tests a mutant, at most")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--trust", action="store_true", help="what tests reached before a change")
    parser.add_argument("--count", action="store_true", help="only how many there are")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    os.chdir(ROOT)
    every = laid_out(TREE)
    print(f"{len(every)} mutants in {len({each.file for each in every})} files", flush=True)
    if given.count:
        for name, count in Counter(str(Path(each.file).parent) for each in every).items():
            print(f"  {count:6} {name}")
        return 0
    chosen = every
    if given.names:
        chosen = [each for each in every if each.name in given.names]
    elif given.size:
        chosen = random.Random(given.seed).sample(every, min(given.size, len(every)))
    known = reached(TREE, given.jobs, given.trust)
    if known.failed:
        print("not used, they do not pass in a mutated tree:", *sorted(known.failed), sep="\n  ")
    by_name = {each.name: each for each in chosen}
    survivors: dict[str, str] = {}
    for number, (name, verdict, seconds) in enumerate(
        tried(TREE, chosen, known, given.jobs, given.most_s), 1
    ):
        print(f"[{number}/{len(chosen)}] {name}: {verdict} ({seconds:.1f} s)", flush=True)
        if not verdict.startswith("killed"):
            survivors[name] = verdict
            print(*by_name[name].diff, sep="\n", flush=True)
    return report(chosen, survivors, given.least, time.monotonic() - began)


def report(
    chosen: Sequence[Mutant], survivors: Mapping[str, str], least: float, took: float
) -> int:
    """Print survivors and the score; 1 when it is too low."""
    listed_ones = equivalents()
    same = [m for m in chosen if m.name in survivors and m.change in listed_ones]
    left = [m for m in chosen if m.name in survivors and m not in same]
    for mutant in left:
        print(f"\n{mutant.name}: {survivors[mutant.name]}", *mutant.diff, sep="\n")
    killed = len(chosen) - len(survivors)
    print(f"\n{percent(killed, len(chosen))} are killed; {took / 60:.0f} minutes")
    score = percent(killed, len(chosen) - len(same))
    print(f"without {len(same)} that change nothing (docs/mutation.md): {score}")
    return int(killed < least / 100 * (len(chosen) - len(same)))


if __name__ == "__main__":
    sys.exit(main())
