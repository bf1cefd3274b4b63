"""Apicurio Registry itself on the loopback, with its storage in memory: `with apicurio(RELEASE)`.

Its archives are locked by SHA-256 and retrieved as the jars are (`spillway.jars`), into `registry`
of the variable folder, once. It speaks the API of Confluent's registry below `CCOMPAT`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spillway.jars import JarError, java_command, run_ivy
from spillway.kafka.broker import free_port
from spillway.places import var_folder

NAME = "apicurio-registry-app"
CCOMPAT = "/apis/ccompat/v7"
START_S = 120.0
STOP_S = 20.0
HEAP_MB = 384
JVMS = Path("/usr/lib/jvm")
"""Where Linux distributions put other Java versions than the one in the path."""


class Release(NamedTuple):
    """One of Apicurio's, and the least Java that it runs on."""

    revision: str
    sha256: str
    java: int


OLD = Release(
    "2.6.13.Final", "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba", 11
)
RELEASE = Release("3.0.9", "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43", 17)
NEWEST = Release("3.3.3", "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63", 21)


def java_of(least: int) -> str | None:
    """A `java` of this version or a later one; None: there is none."""
    for command in (java_command(), *map(str, sorted(JVMS.glob("*/bin/java")))):
        done = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
        version = re.search(r'version "(\d+)', done.stderr)
        if version is not None and int(version[1]) >= least:
            return command
    return None


def archive(release: Release) -> Path:
    """The release's archive, retrieved when it is not there. Raises JarError."""
    place = var_folder() / "registry"
    place.mkdir(parents=True, exist_ok=True)
    found = place / f"{NAME}-{release.revision}.tar.gz"
    with open(place / "lock", "w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found.is_file() and _sha256(found) == release.sha256:
            return found
        with tempfile.TemporaryDirectory(prefix=".ivy-", dir=place) as work:
            run_ivy(_module(release), Path(work), "[artifact]-[revision].[ext]", ("tar.gz",))
            got = Path(work) / "got" / found.name
            if not got.is_file():
                raise JarError(f"Ivy did not retrieve {found.name}")
            if (digest := _sha256(got)) != release.sha256:
                raise JarError(f"{found.name} has SHA-256 {digest}, not {release.sha256}")
            got.replace(found)
    return found


def _module(release: Release) -> str:
    return (
        '<ivy-module version="2.0" xmlns:m="urn:maven">'
        '<info organisation="spillway" module="tests"/>'
        '<configurations><conf name="tests"/></configurations><dependencies>'
        f'<dependency org="io.apicurio" name="{NAME}" rev="{release.revision}" '
        f'conf="tests->default" transitive="false"><artifact name="{NAME}" type="tar.gz" '
        'ext="tar.gz" m:classifier="all"/></dependency></dependencies></ivy-module>'
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def apicurio(release: Release, java: str) -> Iterator[str]:
    """Start it; the URL that is its `registry.url`. It ends with all that it held."""
    packed = archive(release)
    with tempfile.TemporaryDirectory(prefix="spillway-registry-") as made:
        folder = Path(made)
        with tarfile.open(packed) as tar:
            tar.extractall(folder, filter="data")
        [jar] = [*folder.glob("quarkus-run.jar"), *folder.glob(f"{NAME}-*-runner.jar")]
        port = free_port()
        command = [
            java,
            f"-Xmx{HEAP_MB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={port}",
            "-jar",
            jar.name,
        ]
        # No setting of the person who runs the tests.
        env = {n: v for n, v in os.environ.items() if not n.startswith(("QUARKUS", "APICURIO"))}
        log = folder / "registry.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            url = f"http://127.0.0.1:{port}{CCOMPAT}"
            _wait(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/subjects", timeout=2).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                told = log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"the registry does not start ({error}):\n{told}") from None
        time.sleep(0.1)
