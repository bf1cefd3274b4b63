"""What `docs/bring-your-own.md` shows and `tests/integration/test_bring_your_own.py` does not use.

Kills: an option of the shown ones that is renamed or no longer understood, in the page or the
program; a DAG that is renamed, and unpaused by its old name on a page.
"""

from __future__ import annotations

import configparser
import json
import re

from spillway.kafka.options import python_options
from spillway_airflow.dag_docs import DAGS
from spillway_airflow.sections import INHERITED, SPILLWAY
from spillway_schemas.settings import load_settings
from tests.doc_blocks import PAGES, ROOT, SHELL, Block, blocks

PAGE = ROOT / "docs" / "bring-your-own.md"


def written(language: str) -> Block:
    """The page's only block of a language."""
    [found] = [each for each in blocks() if (each.page, each.language) == (PAGE, language)]
    return found


def test_the_options_of_brokers_that_require_a_password_are_the_clients() -> None:
    """Read as the environment's variable, and translated for kafka-python, which leaves none out:
    Java's client has these very names."""
    shown = "\n".join(written("json").lines)
    settings, _ = load_settings(None, environ={"SPILLWAY_KAFKA__OPTIONS": shown})
    assert set(settings.kafka.options) == set(json.loads(shown))
    for role in ("admin", "consumer", "producer"):
        assert python_options(settings.kafka.options, role) == {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "spillway",
            "sasl_plain_password": "...",
            "ssl_cafile": "/etc/spillway/ca.pem",
        }


def test_the_section_of_airflow_has_settings_that_there_are() -> None:
    section = configparser.ConfigParser()
    section.read_string("\n".join(written("ini").lines))
    assert section.sections() == [SPILLWAY]
    connections = re.findall(r"`(\w+_connection) = \w+`", PAGE.read_text())
    assert {*section[SPILLWAY], *connections} <= INHERITED
    assert len(connections) == 2


def test_dags_that_pages_unpause_are_there() -> None:
    ids = {f"{SPILLWAY}_{name}" for name in DAGS}  # as `test_airflow_edges` has them
    for page in PAGES:
        named = re.findall(r"airflow dags \w+ (\w+)", page.read_text())
        assert set(named) <= ids, page.name
    # This page names all of them.
    [list_of_all] = re.findall(r"All five DAGs arrive paused\..*?\n\n", PAGE.read_text(), re.S)
    assert sorted(re.findall(r"\bspillway_\w+", list_of_all)) == sorted(ids)
    assert len(ids) == 5


def test_each_command_block_is_one_that_a_test_runs() -> None:
    """Those with a prompt: `test_bring_your_own`; the one before them: `own_airflow`."""
    shown = [each for each in blocks() if each.page == PAGE and each.language in SHELL]
    install, *others = shown
    assert [line.split()[0] for line in install.lines] == ["python", "spillway"]
    for each in others:
        assert all(line.startswith("$ ") for line in each.lines), each.where
