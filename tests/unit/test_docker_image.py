"""The Dockerfile: pinned, not root, and everything that it copies is there and is sent."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from tests.docker_files import DOCKER, DOCKERFILE, ROOT, USER

INSTRUCTIONS = DockerfileParser(fileobj=io.BytesIO(DOCKERFILE.read_bytes())).structure
SECRET = re.compile(r"secret|password|token|api_?key", re.I)


def of(*kinds: str) -> list[str]:
    return [each["value"] for each in INSTRUCTIONS if each["instruction"] in kinds]


def stages() -> list[list[dict[str, str]]]:
    """The instructions of each image."""
    found: list[list[dict[str, str]]] = []
    for each in INSTRUCTIONS:
        if each["instruction"] == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def copied() -> list[str]:
    """What COPY takes from the context."""
    return [source for value in of("COPY") for source in value.split()[:-1]]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path through: the last line that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!")
        if line and not line.startswith("#"):
            above = [path, *map(str, Path(path).parents)]
            anywhere = pattern.removeprefix("**/")
            if any(fnmatch.fnmatch(each, pattern) for each in above) or (
                anywhere != pattern and anywhere in Path(path).parts
            ):
                sent = line.startswith("!")
    return sent


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_begin_with_an_exact_version() -> None:
    arguments = dict(value.split("=", 1) for value in of("ARG"))
    made = {value.split()[-1] for value in of("FROM") if " AS " in value}
    for value in of("FROM"):
        image = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], value.split()[0])
        assert image in made or re.search(r":\d+\.\d+\.\d+[-@.\w]*$", image), image


def test_no_image_runs_as_root() -> None:
    for stage in stages():
        users = [each["value"] for each in stage if each["instruction"] == "USER"]
        assert users[-1] == f"{USER}:{USER}", stage[0]["value"]
    assert f"--uid {USER}" in DOCKERFILE.read_text()


def test_nothing_comes_from_the_network_but_what_is_locked() -> None:
    assert not of("ADD")
    assert not re.search(r"https?://|\b(curl|wget|git clone)\b", DOCKERFILE.read_text())
    for command in of("RUN"):
        for install in re.findall(r"pip install ([^&]*)", command):
            from_lock = "--require-hashes" in install and re.search(r"-r \S+\.lock", install)
            assert from_lock or "--no-index" in install, install
            assert "--no-deps" in install, install


def imported(folder: Path) -> Iterator[str]:
    """The modules that the files below a folder import, by name, too."""
    for path in folder.rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            match each:
                case ast.Import(names):
                    yield from (name.name for name in names)
                case ast.ImportFrom(module=str(name)):
                    yield name
                case ast.Call(ast.Attribute(attr="import_module"), [ast.Constant(str(name))]):
                    yield name


def package_of(module: str) -> str:
    """The package that a module comes in. Several have modules below `google`."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for name in packages_distributions()[module.partition(".")[0]]:
        files = distribution(name).files or []
        if any(Path(str(file.locate())) == Path(spec.origin) for file in files):
            return name.lower()
    raise AssertionError(f"{module}: of no package")


@pytest.mark.server
def test_the_images_have_what_reads_formats() -> None:
    """Kills: extras that no image has. A stream of Avro would end with advice that helps nobody."""
    locked = set(re.findall(r"(?m)^([\w.-]+)==", (ROOT / "requirements.lock").read_text()))
    ours = {"spillway", "spillway_schemas", "__future__", *sys.stdlib_module_names}
    needed = {
        package_of(module)
        for module in imported(ROOT / "jobs/spillway/decode/formats")
        if module.partition(".")[0] not in ours
    }
    assert {"fastavro", "protobuf", "grpcio-tools"} <= needed
    assert needed <= locked


def test_no_secret_is_in_an_image() -> None:
    for value in of("ENV", "ARG"):
        assert not SECRET.search(value), value


def test_what_is_copied_is_there_and_is_sent() -> None:
    for source in copied():
        assert (ROOT / source).exists(), source
        assert is_sent(source), source


@pytest.mark.parametrize(
    "path", ["docker/secrets/postgres_password", "var/jars/x.jar", ".git/config", ".env", "tests/x"]
)
def test_nothing_else_is_sent(path: str) -> None:
    assert not is_sent(path)


def test_only_what_is_copied_is_sent() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    named = {line[1:] for line in lines if line.startswith("!")}
    tops = {source if source.startswith("docker/") else source.split("/")[0] for source in copied()}
    assert named == tops


def test_paths_in_the_image_agree_with_its_python() -> None:
    match = re.search(r"python:(\d+\.\d+)\.", DOCKERFILE.read_text())
    assert match
    assert f"/lib/python{match[1]}/site-packages/pyspark" in DOCKERFILE.read_text()
    assert f"--python-version {match[1]}" in (ROOT / "Makefile").read_text()


def test_the_commands_exist() -> None:
    entry = next(json.loads(value) for value in of("ENTRYPOINT"))
    assert entry[-1] == "/opt/spillway/docker/entrypoint"
    assert "docker/entrypoint" in copied()
    assert (DOCKER / "entrypoint").stat().st_mode & 0o111


def test_the_entrypoint_brings_the_jars_and_gives_way(tmp_path: Path) -> None:
    for _ in range(2):  # a container that is started again finds the link
        done = subprocess.run(
            [DOCKER / "entrypoint", "sh", "-c", "echo $0 $1", "one two"],
            env={"SPILLWAY_VAR": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "one two\n"
    assert (tmp_path / "jars").readlink() == Path("/opt/spillway/var/jars")
