"""`pip install spillway`: the wheel alone, in an environment and a folder without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from spillway.places import VAR_VARIABLE, var_folder
from tests.checkout import copied_checkout

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SMALL_DAY = """\
from rich.console import Console
from spillway.demo import demo
from spillway_schemas.scenario import load_scenario
from spillway_schemas.settings import load_settings

day = load_scenario("demo")
small = day.model_copy(update={"rows": 3_000})
raise SystemExit(demo(load_settings(None, {})[0], Console(), scenario=small))
"""


class Installed:
    """An environment that holds the wheel, and a home where nothing was made yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "env" / "bin"
        self.data = folder / "home" / "data" / "spillway"
        kept = {n: v for n, v in os.environ.items() if n not in (VAR_VARIABLE, "PYTHONPATH")}
        self.env = {
            **{name: value for name, value in kept.items() if not name.startswith("SPILLWAY_")},
            "HOME": str(folder / "home"),
            "XDG_DATA_HOME": str(self.data.parent),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }

    def run(self, *command: str, **more: str) -> str:
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder / "work",
            env=self.env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, jars: None) -> Installed:
    """Other packages are those of the tests' own environment; the registry is not asked."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    checkout = copied_checkout(folder / "checkout")
    subprocess.run([*pip, *build, "--wheel-dir", str(folder), str(checkout)], check=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    into = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    python = str(folder / "env" / "bin" / "python")
    subprocess.run([*pip, "--python", python, *into, str(wheel)], check=True)
    # A path that a .pth file adds is no site folder: the checkout's own .pth has no effect there.
    [packages] = (folder / "env").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = Installed(folder)
    for each in (folder / "work", found.data):
        each.mkdir(parents=True)
    (found.data / "jars").symlink_to(var_folder() / "jars")
    return found


def test_nothing_else_is_claimed(installed: Installed) -> None:
    [record] = (installed.folder / "env").rglob("spillway-*.dist-info/RECORD")
    lines = [line for line in record.read_text().splitlines() if ".dist-info/" not in line]
    assert {line.partition("/")[0] for line in lines} == {
        *("spillway", "spillway_schemas", "spillway_airflow"),
        "..",  # bin/spillway
    }
    for module in ("spillway", "spillway_schemas", "spillway_airflow"):
        where = installed.run("python", "-c", f"import {module}; print({module}.__file__)")
        assert where.startswith(str(installed.folder / "env")), where


def test_what_is_made_lies_in_the_user_s_folder(installed: Installed) -> None:
    assert f"setup: jars into {installed.data}" not in installed.run("spillway", "setup")
    doctor = installed.run("python", "-c", "from spillway.places import *; print(var_folder())")
    assert doctor.strip() == str(installed.data)


def test_a_trading_day_is_proved_complete(installed: Installed) -> None:
    said = installed.run("python", "-c", SMALL_DAY)
    assert "is complete" in said, said
    assert (installed.data / "demo" / "warehouse").is_dir()
    assert not list((installed.folder / "work").iterdir()), "the working directory stays as it was"


def test_an_airflow_that_is_there_finds_plugin_and_dags(installed: Installed) -> None:
    dags = installed.folder / "dags"
    dags.mkdir()
    assert str(dags) in installed.run("spillway", "airflow", "dags", str(dags))
    home = {
        "AIRFLOW_HOME": str(installed.folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    look = (
        "from airflow.dag_processing.dagbag import DagBag\n"
        "from airflow.plugins_manager import get_plugin_info\n"
        "bag = DagBag()\n"
        "print('errors', bag.import_errors, 'dags', sorted(bag.dags))\n"
        "print('plugins', [each['name'] for each in get_plugin_info()])\n"
    )
    airflow = str(Path(sys.executable).with_name("airflow"))
    installed.run("python", airflow, "db", "migrate", **home)
    said = installed.run("python", "-c", look, **home)
    assert "errors {} dags ['spillway_maintenance', 'spillway_market_close'" in said, said
    assert "'spillway'" in said.partition("plugins [")[2], said
