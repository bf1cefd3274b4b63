"""The jars' lock: what it may say, what is installed, what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spillway import jars
from spillway.jars import Jar, JarError, install, ivy_module, jar_paths, parse_lock, problems
from tests import apicurio

CONTENT = b"a jar"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def test_the_lock_names_both_class_paths():
    locked = parse_lock(jars.lock_file().read_text())
    names = {(j.configuration, j.name) for j in locked}
    assert {("spark", "delta-spark_4.2_2.13"), ("spark", "spark-sql-kafka-0-10_2.13")} <= names
    assert {("broker", "kafka_2.13"), ("broker", "kafka-clients")} <= names
    # One version of a thing on one class path.
    assert len(names) == len(locked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spark g n 1", "line 1: expected"),
        (f"# c\nflink g n 1 {DIGEST}", "line 2: configuration 'flink'"),
        ("spark g n 1 ABC", "line 1: not a SHA-256"),
        (f"spark g n 1 {DIGEST}\nspark h n 1 {DIGEST}", "names a jar twice: spark/n-1.jar"),
    ],
)
def test_a_wrong_lock_names_the_line(text, message):
    with pytest.raises(JarError, match=message):
        parse_lock(text)


@pytest.fixture
def own_lock(tmp_path, monkeypatch) -> Path:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"spark g one 1 {DIGEST}\nbroker g two 2 {DIGEST}\n")
    monkeypatch.setattr(jars, "lock_file", lambda: lock)
    return tmp_path / "var"


@pytest.fixture
def repository(monkeypatch):
    """Stands in for Ivy: serves `content`, and counts what is asked for."""

    class Repository:
        def __init__(self) -> None:
            self.content = CONTENT
            self.asked: list[list[str]] = []

        def serve(self, wanted, folder):
            self.asked.append([j.file for j in wanted])
            for jar in wanted:
                place = folder / "got" / jar.configuration / jar.file
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self.content)

    fake = Repository()
    monkeypatch.setattr(jars, "_run_ivy", fake.serve)
    return fake


def test_a_second_installation_asks_nobody(own_lock, repository):
    assert install(own_lock) == 2
    assert [p.name for p in jar_paths("spark", own_lock)] == ["one-1.jar"]
    assert install(own_lock) == 0
    assert repository.asked == [["one-1.jar", "two-2.jar"]]


def test_jars_that_are_there_and_verify_are_kept(own_lock, repository):
    place = own_lock / "jars" / "spark"
    place.mkdir(parents=True)
    (place / "one-1.jar").write_bytes(CONTENT)
    (place / "old-0.jar").write_bytes(b"of an earlier lock")
    assert install(own_lock) == 1
    assert repository.asked == [["two-2.jar"]]
    assert not (place / "old-0.jar").exists()


def test_a_jar_with_another_digest_is_not_installed(own_lock, repository):
    repository.content = b"changed on the way"
    with pytest.raises(JarError, match=r"one-1\.jar has SHA-256 .* It was not installed"):
        install(own_lock)
    with pytest.raises(JarError, match="run 'spillway setup'"):
        jar_paths("spark", own_lock)
    assert not jars.is_installed(own_lock)


def test_a_damaged_jar_is_found_and_replaced(own_lock, repository):
    install(own_lock)
    (path,) = jar_paths("spark", own_lock)
    path.write_bytes(b"damaged")
    locked = parse_lock(jars.lock_file().read_text())
    assert [(j.name, what[:11]) for j, what in problems(locked, own_lock)] == [
        ("one", "has SHA-256")
    ]
    (own_lock / "jars" / jars.STAMP).unlink()
    assert install(own_lock) == 1
    assert path.read_bytes() == CONTENT


def test_an_archive_of_the_tests_with_another_digest_is_not_taken(tmp_path, monkeypatch):
    release = apicurio.Release("1", DIGEST, 17)
    content = [b"changed on the way"]
    asked = []

    def serve(described, folder, names, types):
        asked.append(described)
        place = folder / "got" / f"{apicurio.NAME}-1.tar.gz"
        place.parent.mkdir()
        place.write_bytes(content[0])

    monkeypatch.setattr(apicurio, "var_folder", lambda: tmp_path)
    monkeypatch.setattr(apicurio, "run_ivy", serve)
    with pytest.raises(JarError, match=r"app-1\.tar\.gz has SHA-256 .*, not "):
        apicurio.archive(release)
    assert [each.name for each in (tmp_path / "registry").iterdir()] == ["lock"]
    content[0] = CONTENT
    found = apicurio.archive(release)
    assert found.read_bytes() == CONTENT
    assert apicurio.archive(release) == found
    assert len(asked) == 2
    (dependency,) = ElementTree.fromstring(asked[0]).iter("dependency")
    assert dependency.get("transitive") == "false"


def test_the_module_for_ivy_is_exact():
    module = ElementTree.fromstring(ivy_module([Jar("spark", "g", "n<1", "1", DIGEST)]))
    (dependency,) = module.iter("dependency")
    assert dependency.attrib == {
        "org": "g",
        "name": "n<1",
        "rev": "1",
        "conf": "spark->default",
        "transitive": "false",
    }


def test_no_file_of_the_set_up_names_a_registry(request):
    root = request.config.rootpath
    for name in (
        "jobs/spillway/jars.lock",
        "requirements.lock",
        "requirements-dev.lock",
        "requirements-flink.lock",
        "Makefile",
        "pyproject.toml",
        "scripts/setup",
        "jobs/spillway/jars.py",
        ".ci/run",
    ):
        text = (root / name).read_text()
        for host in ("repo1.", "repo.maven", "pypi.org", "pythonhosted", "http://", "https://"):
            assert host not in text, (name, host)


def test_every_locked_package_has_hashes(request):
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (request.config.rootpath / name).read_text()
        packages = [line for line in text.splitlines() if "==" in line]
        assert len(packages) > 30
        assert all(line.rstrip().endswith("\\") for line in packages)
