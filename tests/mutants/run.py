"""Named mutants: `python -m tests.mutants.run [NAME ...]` applies each and shows that tests notice.

Works on copies of the tree in a temporary folder, one mutant in each at a time. The named tests
must pass without a mutant first. Prints a line a mutant, and ends with 1 when one survives, with 2
when the list does not fit the source any more or tests fail by themselves.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.packages import PACKAGES, source_paths

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("named.toml")
COPIED = (
    *("jobs", "schemas", "plugins", "dags", "tests", "benchmarks", "docs"),
    *("README.md", "CONTRIBUTING.md", "pyproject.toml"),
)
FAILED = 1
"""What pytest ends with when tests failed; anything else but 0 says nothing of the mutant."""
TIMEOUT_S = 600.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "hypothesis", "numpy", "pyarrow", "pandas", "pydantic"])


@dataclass(frozen=True)
class Mutant:
    """One change of one place, and the test files that must fail for it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The source with the change. Raises ValueError unless `old` stands there once."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: its text stands {text.count(self.old)} times in {self.file}, not "
                "once; mend tests/mutants/named.toml"
            )
        return text.replace(self.old, self.new)


def named(path: Path = LIST) -> list[Mutant]:
    """The list."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_of(root: Path, target: Path) -> Path:
    """A copy of what tests need of a tree."""
    skipped = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=skipped)
        elif (root / name).exists():
            shutil.copy2(root / name, target / name)
    return target


def tested(tests: Sequence[str], tree: Path) -> tuple[int, str]:
    """Run test files in a copy of the tree: what pytest ends with and what it prints.

    Each in a process of its own, forked from one that has loaded the libraries already. Raises
    TimeoutError.
    """
    output = tree / "output.txt"
    process = FORKS.Process(target=_pytest, args=(tuple(tests), str(tree), str(output)))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"tests have not ended after {TIMEOUT_S:.0f} s")
    return process.exitcode, output.read_text()


def _pytest(tests: Sequence[str], tree: str, output: str) -> None:
    """In the new process: nothing of ours is loaded but from the copy."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name in [n for n in sys.modules if n.split(".")[0] in (*PACKAGES, "tests")]:
        del sys.modules[name]
    os.chdir(tree)
    sys.path[:0] = source_paths(tree)
    sys.dont_write_bytecode = True  # a mutant may come within a second of the text before
    os.environ |= {
        "CI": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(source_paths(tree)),
    }
    options = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "-m", "not server and not soak"]
    os._exit(int(pytest.main([*options, *tests])))


def verdict(mutant: Mutant, tree: Path) -> str:
    """`killed`, `SURVIVED`, or what else happened, to one mutant in a copy of the tree."""
    path = tree / mutant.file
    before = path.read_text()
    path.write_text(mutant.applied(before))
    try:
        code, output = tested(mutant.tests, tree)
    except TimeoutError:
        return "killed (it hangs)"
    finally:
        path.write_text(before)
    if code == 0:
        return "SURVIVED"
    if code == FAILED:
        return "killed"
    return f"NOT RUN (pytest ended with {code}): {output[-2000:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    mutants = [each for each in named() if not given.names or each.name in given.names]
    try:
        for each in mutants:
            each.applied((ROOT / each.file).read_text())
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    trees: SimpleQueue[Path] = SimpleQueue()
    survivors = []
    with tempfile.TemporaryDirectory(prefix="spillway-mutants-") as scratch:
        for number in range(given.jobs):
            trees.put(copy_of(ROOT, Path(scratch) / str(number)))
        tree = trees.get()
        files = sorted({test for each in mutants for test in each.tests})
        code, output = tested(files, tree)
        trees.put(tree)
        if code:
            print(f"tests fail without any mutant:\n{output[-4000:]}", file=sys.stderr)
            return 2

        def tried(mutant: Mutant) -> str:
            tree = trees.get()
            began = time.monotonic()
            try:
                found = verdict(mutant, tree)
            finally:
                trees.put(tree)
            print(f"{mutant.name}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
            return found

        with ThreadPoolExecutor(given.jobs) as pool:
            for mutant, found in zip(mutants, pool.map(tried, mutants), strict=True):
                if not found.startswith("killed"):
                    survivors.append(mutant.name)
    killed = len(mutants) - len(survivors)
    print(f"{killed} of {len(mutants)} named mutants are killed", *survivors, sep="\n  ")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
