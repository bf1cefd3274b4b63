"""The page `docs/bring-your-own.md`, from top to bottom: its files, its commands in their order.

The broker requires the page's login with its options, and lets that user do what the page asks for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from spillway.kafka.client import KafkaCluster
from spillway.kafka.options import python_options
from spillway.tables import Warehouse
from tests.doc_blocks import ROOT, Block, blocks
from tests.integration.day import delta_rows, wait_for
from tests.integration.secured import (
    PAGE_USER,
    PASSWORDS,
    ROOT_USER,
    Right,
    SecuredBroker,
    let,
    secured_broker,
)
from tests.s3_server import KEY, SECRET, s3_server

pytestmark = pytest.mark.server

SPILLWAY = [sys.executable, "-c", "from spillway.cli import main; main()"]
PAGE = ROOT / "docs" / "bring-your-own.md"
DAY = "2026-01-05"
ADDRESS = "kafka-1.example.com:9092,kafka-2.example.com:9092"
"""Of the page; here it is the broker's."""


def rows() -> dict[str, list[dict[str, Any]]]:
    """Orders, some of them paid twice or never sent."""
    orders = [{"id": f"o{n}", "customer": f"c{n % 5}", "total": f"{n}.50"} for n in range(60)]
    payments = [
        {"order_id": f"o{n}", "method": m} for n in range(50) for m in ("card", "cash")[: 1 + n % 2]
    ]
    shipments = [{"order_id": f"o{n}", "carrier": "post" if n % 3 else None} for n in range(10, 60)]
    return {"shop.orders": orders, "shop.payments": payments, "shop.shipments": shipments}


def expected() -> Counter[tuple[Any, ...]]:
    of = rows()
    return Counter(
        (order["id"], order["customer"], Decimal(order["total"]), paid["method"], sent["carrier"])
        for order in of["shop.orders"]
        for paid in of["shop.payments"]
        if paid["order_id"] == order["id"]
        for sent in of["shop.shipments"]
        if sent["order_id"] == order["id"]
    )


def filled(secured: SecuredBroker) -> None:
    """By an administrator; the page's user may `Describe` and `Read` the topics."""
    login = secured.login(ROOT_USER)
    view = KafkaCluster(secured.sasl, login)
    view.create_topics(dict.fromkeys(rows(), 2))
    view.close()
    let(
        secured,
        PAGE_USER,
        [Right("topic", topic, may) for topic in rows() for may in ("Describe", "Read")],
    )
    producer = KafkaProducer(bootstrap_servers=secured.sasl, **python_options(login, "producer"))
    for topic, some in rows().items():
        for row in some:
            producer.send(topic, json.dumps(row).encode(), key=row.get("id", "").encode() or b"k")
    producer.close()


def login(page: list[Block], secured: SecuredBroker) -> str:
    """The page's options for a broker that requires a password, with the one that is right here and
    this broker's authority."""
    [shown] = [block for block in page if block.language == "json"]
    text = "\n".join(shown.lines)
    assert f'username=\\"{PAGE_USER}\\"' in text
    for written, here in (
        ('password=\\"...\\"', f'password=\\"{PASSWORDS[PAGE_USER]}\\"'),
        ("/etc/spillway/ca.pem", str(secured.folder / "authority.pem")),
    ):
        assert text.count(written) == 1
        text = text.replace(written, here)
    return text


def test_the_page_from_top_to_bottom(jars: None, spark_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with secured_broker(tmp_path / "broker") as secured, s3_server() as s3:
        filled(secured)
        page = [block for block in blocks() if block.page == PAGE]
        options = s3.options | {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        env = os.environ | spark_env | {
            "SPILLWAY_WAREHOUSE__OPTIONS": json.dumps(options),
            "SPILLWAY_KAFKA__OPTIONS": login(page, secured),
            "SPILLWAY_STATE__ROOT": str(tmp_path / "state"),
            "SPILLWAY_SPARK__MASTER": "local[2]",
            "SPILLWAY_STREAM__TRIGGER_S": "0.2",
        }  # fmt: skip
        for block in page:
            if block.language == "toml":
                name = "orders.toml" if "[join]" in block.lines else "spillway.toml"
                text = "\n".join(block.lines).replace(ADDRESS, secured.sasl)
                (tmp_path / name).write_text(text + "\n")
        (tmp_path / "dags").mkdir()

        def run(command: str) -> str:
            words = command.removeprefix("spillway ").split()
            done = subprocess.run(
                [*SPILLWAY, *words],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=170,
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            for secret in (SECRET, PASSWORDS[PAGE_USER]):
                assert secret not in done.stdout + done.stderr
            return done.stdout

        commands = [
            command
            for block in page
            if block.language == "" and block.lines[0].startswith("$ ")
            for command in block.commands
        ]
        assert len(commands) == 11
        log = (tmp_path / "stream.log").open("w+")
        stream: subprocess.Popen[str] | None = None
        said: dict[str, str] = {}
        try:
            for command in commands:
                words = command.split()
                if words[1] == "stream":
                    stream = subprocess.Popen(
                        [*SPILLWAY, *words[1:]],
                        env=env,
                        cwd=tmp_path,
                        stdout=log,
                        stderr=log,
                        text=True,
                    )
                    wait_for(lambda: "epoch 0:" in Path(log.name).read_text(), 120, "an epoch")
                    continue
                said[command] = run(command)
                if words[1] == "seal":
                    wait_for(lambda: f"sealed {DAY}" in Path(log.name).read_text(), 60, "the seal")
        finally:
            if stream is not None:
                stream.send_signal(signal.SIGTERM)
                stream.wait(60)
        assert stream is not None
        assert stream.returncode == 0, Path(log.name).read_text()
        assert "fail" not in said["spillway doctor"]
        assert "complete" in said[f"spillway verify --session {DAY}"]
        assert list((tmp_path / "dags").glob("*.py"))
        warehouse = Warehouse(s3.root("orders"), options=s3.options)
        assert warehouse.sessions.history().outcomes()[DAY].complete
        s3.copied("orders", tmp_path / "copy")
        names = ("id", "order_customer", "order_total", "payment_method", "shipment_carrier")
        found = Counter(
            tuple(row[name] for name in names)
            for row in delta_rows(tmp_path / "copy" / "results", None)
        )
        assert found == expected()
