"""JVM jars: an exact list (`jars.lock`), retrieved by the Ivy inside pyspark, verified by SHA-256.

Model: the lock has one line for each jar: configuration (`spark`: what Spark needs besides
pyspark's own jars; `broker`: the class path of the embedded Kafka), organisation, name, revision
and SHA-256. A configuration is a folder `jars/<configuration>` of the variable folder that holds
exactly the lock's jars.

Invariants: resolution is never transitive, so nothing comes that the lock does not name. A jar
whose digest differs is not installed. The stamp file is written last and carries the digest of
the lock: with it present a second set-up does nothing; without it, jars that are there already
and verify are kept.

No repository address is written anywhere: Ivy's built-in Maven Central is used, or whatever the
Ivy settings file that `SPILLWAY_IVY_SETTINGS` names configures (mirrors, proxies, credentials).
Run `python -m spillway.jars` to install.

Known limitation: Java and pyspark must be there; a host without a repository needs `jars/` copied
from another one (the set-up then finds the jars, verifies them and asks nobody).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from spillway.places import VAR_VARIABLE, var_folder
from spillway_schemas.exits import FAILED

CONFIGURATIONS = ("spark", "broker")
SETTINGS_VARIABLE = "SPILLWAY_IVY_SETTINGS"
STAMP = ".locked"

_IVY_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
"""Without POM files (nothing is transitive) and without Ivy's own checksums (ours are stronger):
one request a jar."""


JAVA_VERSIONS = (17, 21)
"""That Spark and Kafka run on."""
JAVA_REMEDY = "install a Java 17 runtime and set JAVA_HOME to it"


class JarError(RuntimeError):
    """The jars cannot be had as the lock names them; the message says how to mend it."""

    exit_code = FAILED


class JavaError(RuntimeError):
    """There is no Java that would do; the message has no remedy, which is `JAVA_REMEDY`."""

    exit_code = FAILED


class Jar(NamedTuple):
    """One line of the lock."""

    configuration: str
    organisation: str
    name: str
    revision: str
    sha256: str

    @property
    def file(self) -> str:
        """Its file name in the configuration's folder."""
        return f"{self.name}-{self.revision}.jar"


def parse_lock(text: str) -> list[Jar]:
    """Parse the lock: lines of five words, `#` begins a comment. Raises JarError with the line."""
    jars: list[Jar] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 5:
            raise JarError(
                f"jars.lock, line {number}: expected 'configuration organisation name revision "
                f"sha256', found {len(words)} words"
            )
        jar = Jar(*words)
        if jar.configuration not in CONFIGURATIONS:
            raise JarError(
                f"jars.lock, line {number}: configuration {jar.configuration!r} is none of "
                f"{', '.join(CONFIGURATIONS)}"
            )
        if len(jar.sha256) != 64 or set(jar.sha256) - set("0123456789abcdef"):
            raise JarError(f"jars.lock, line {number}: not a SHA-256 in lower-case hex")
        jars.append(jar)
    names = [(j.configuration, j.file) for j in jars]
    if len(set(names)) != len(names):
        raise JarError(f"jars.lock names a jar twice: {_first_repeated(names)}")
    return jars


def _first_repeated(names: Sequence[tuple[str, str]]) -> str:
    seen: set[tuple[str, str]] = set()
    for name in names:
        if name in seen:
            return "/".join(name)
        seen.add(name)
    return ""


def lock_file() -> Path:
    """The lock, which lies beside this module."""
    return Path(__file__).with_name("jars.lock")


def jars_folder(configuration: str, var: Path | None = None) -> Path:
    """The folder of a configuration's jars (it need not exist yet)."""
    return (var or var_folder()) / "jars" / configuration


def jar_paths(configuration: str, var: Path | None = None) -> list[Path]:
    """The jars of a configuration, in the lock's order. Raises JarError when one is not there.

    Only existence is looked at: digests were verified when the jars were installed, and
    `problems` verifies them again.
    """
    folder = jars_folder(configuration, var)
    wanted = [j for j in parse_lock(lock_file().read_text()) if j.configuration == configuration]
    paths = [folder / jar.file for jar in wanted]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JarError(
            f"{len(missing)} of {len(paths)} jars are not in {folder} (first: {missing[0]}): run "
            f"'spillway setup'{_own_var()}"
        )
    return paths


def _own_var() -> str:
    """Where jars are looked for is a variable: who set it for something else is told."""
    return f" with {VAR_VARIABLE} set as it is now" if VAR_VARIABLE in os.environ else ""


def problems(jars: Iterable[Jar], var: Path) -> list[tuple[Jar, str]]:
    """Every jar that is missing or whose digest differs, with which of the two it is."""
    found = []
    for jar in jars:
        path = jars_folder(jar.configuration, var) / jar.file
        if not path.is_file():
            found.append((jar, "missing"))
        elif (digest := _sha256(path)) != jar.sha256:
            found.append((jar, f"has SHA-256 {digest}, the lock says {jar.sha256}"))
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_installed(var: Path | None = None) -> bool:
    """Whether a set-up for this very lock was completed (a look at the stamp only)."""
    stamp = (var or var_folder()) / "jars" / STAMP
    return stamp.is_file() and stamp.read_text().strip() == _sha256(lock_file())


def install(var: Path | None = None) -> int:
    """Bring the jars to what the lock names; how many were retrieved. Raises JarError."""
    var = var or var_folder()
    if is_installed(var):
        return 0
    jars = parse_lock(lock_file().read_text())
    wanted = [jar for jar, _ in problems(jars, var)]
    if wanted:
        retrieve(wanted, var)
    for configuration in CONFIGURATIONS:
        named = {j.file for j in jars if j.configuration == configuration}
        for path in jars_folder(configuration, var).glob("*.jar"):
            if path.name not in named:
                path.unlink()
    stamp = var / "jars" / STAMP
    stamp.write_text(_sha256(lock_file()) + "\n")
    return len(wanted)


def retrieve(jars: Sequence[Jar], var: Path) -> None:
    """Ask Ivy for exactly these jars, verify them, and only then move them into place.

    They may be jars that the lock does not name, in a configuration of its own. Raises JarError.
    """
    root = var / "jars"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ivy-", dir=root) as work:
        folder = Path(work)
        _run_ivy(jars, folder)
        for jar in jars:
            got = folder / "got" / jar.configuration / jar.file
            if not got.is_file():
                raise JarError(f"Ivy did not retrieve {jar.organisation}#{jar.name};{jar.revision}")
            digest = _sha256(got)
            if digest != jar.sha256:
                raise JarError(
                    f"{jar.file} has SHA-256 {digest}, but the lock says {jar.sha256}: the "
                    "repository or something on the way changed it. It was not installed."
                )
        for jar in jars:
            target = jars_folder(jar.configuration, var) / jar.file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder / "got" / jar.configuration / jar.file, target)


def _run_ivy(jars: Sequence[Jar], folder: Path) -> None:
    run_ivy(ivy_module(jars), folder, "[conf]/[artifact]-[revision].[ext]", ("jar", "bundle"))


def run_ivy(described: str, folder: Path, names: str, types: Sequence[str]) -> None:
    """Retrieve what a module depends on, below `got` of a folder, under names of Ivy's pattern.

    Nothing is verified. Raises JarError.
    """
    settings = folder / "ivysettings.xml"
    settings.write_text(_IVY_SETTINGS)
    module = folder / "ivy.xml"
    module.write_text(described)
    own = os.environ.get(SETTINGS_VARIABLE, "")
    demand_java()
    command = [
        java_command(),
        "-jar",
        str(_ivy_jar()),
        "-settings",
        own or str(settings),
        "-ivy",
        str(module),
        "-cache",
        str(folder / "cache"),
        "-retrieve",
        str(folder / "got" / names),
        "-types",
        *types,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        telling = [
            line for line in lines if "WARN" in line or "ERROR" in line or "not found" in line
        ]
        raise JarError(
            "Ivy could not retrieve the jars:\n  "
            + "\n  ".join((telling or lines)[-15:])
            + "\nCheck the network. Behind a mirror or proxy, point "
            + f"{SETTINGS_VARIABLE} to an Ivy settings file."
        )


def ivy_module(jars: Sequence[Jar]) -> str:
    """Ivy's description of exactly these jars: nothing transitive, nothing evicted."""
    named = sorted({j.configuration for j in jars})
    configurations = "".join(f"<conf name={quoteattr(c)}/>" for c in named)
    dependencies = "\n".join(
        f"<dependency org={quoteattr(j.organisation)} name={quoteattr(j.name)} "
        f'rev={quoteattr(j.revision)} conf="{j.configuration}->default" transitive="false"/>'
        for j in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="spillway" module="jars"/>\n'
        f"<configurations>{configurations}</configurations>\n"
        f"<dependencies>\n{dependencies}\n</dependencies>\n"
        '<conflicts><manager name="all"/></conflicts></ivy-module>\n'
    )


def java_command() -> str:
    """The `java` to start: of `JAVA_HOME` when that is set, else the one on the path.

    Raises JavaError when there is none.
    """
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if found is None:
        raise JavaError(f"no java {f'in JAVA_HOME ({home})' if home else 'on the path'}")
    return found


def java_version() -> tuple[int, str]:
    """The version of the `java` to start (17, say), and its path. Raises JavaError."""
    command = java_command()
    try:
        done = subprocess.run(
            [command, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{command} does not run: {error}") from error
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    version = int(match[1]) if match else 0
    if version not in JAVA_VERSIONS:
        raise JavaError(
            f"{command} is version {version or 'unknown'}; Spark and Kafka need "
            + " or ".join(map(str, JAVA_VERSIONS))
        )
    return version, command


def demand_java() -> None:
    """Raise JavaError with its remedy: what Java itself says of a wrong one helps nobody."""
    try:
        java_version()
    except JavaError as error:
        raise JavaError(f"{error}: {JAVA_REMEDY}") from None


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarError("pyspark is not installed in this Python. Install spillway again.")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarError(f"no ivy-*.jar beside pyspark in {spec.origin}. Install pyspark again.")
    return found[-1]


def main() -> int:
    """Install the jars; a step of `spillway setup`."""
    try:
        if is_installed():
            return 0
        print(f"setup: jars into {var_folder() / 'jars'}", flush=True)
        count = install()
    except (JarError, JavaError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        print(
            f"setup: {error.filename or var_folder()} cannot be written: {error.strerror}. Mend "
            f"that, or set {VAR_VARIABLE} to another folder",
            file=sys.stderr,
        )
        return FAILED
    print(f"setup: {count} jars retrieved and verified" if count else "setup: jars verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
