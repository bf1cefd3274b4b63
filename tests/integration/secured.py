"""A broker as companies have them: TLS, logins, and permissions for each user; on loopback.

The embedded broker's own folder, jars and processes, with other properties. Certificates are of an
authority that is made here. `READER` may do what the documentation asks for, and nothing else.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import KafkaError

from spillway.kafka import broker as embedded
from spillway.kafka.client import KafkaCluster
from spillway.kafka.options import python_options
from spillway.kafka.properties import HOST, LOG4J, server_properties
from tests.integration.day import STREAMS, Day

ROOT_USER, READER, WRITER, RELAYER = "operator", "reader", "writer", "relayer"
PAGE_USER = "spillway"
"""As whom `docs/bring-your-own.md` logs in."""
WORD = "Jupiter"
"""Of the reader's password, without anything that an escape would change."""
PASSWORDS = {
    ROOT_USER: "operator's own",
    READER: f'q"uo\\{WORD}',
    WRITER: "writer-secret",
    RELAYER: "relayer-secret",
    PAGE_USER: "Callisto-of-the-page",
}
"""A quote and a backslash in one: login modules have an escape for both."""
KEY_PASSWORD = "Ganymede-opens-it"
RIGHTS = {
    READER: (ACLOperation.READ, ACLOperation.DESCRIBE),
    WRITER: (ACLOperation.WRITE, ACLOperation.DESCRIBE),
}
"""On topics that begin with `TAG`. A test says what `RELAYER` and `PAGE_USER` may do."""
TAG = "desk-"
MECHANISM = "SCRAM-SHA-512"
START_S = 60.0


@dataclass(frozen=True)
class SecuredBroker:
    """A running broker and how each user speaks to it."""

    sasl: str
    """`host:port` of the listener with logins."""
    mutual: str
    """`host:port` of the listener that asks for a client's certificate."""
    folder: Path

    def login(self, user: str) -> dict[str, str]:
        """The Java client's options of a user with a password."""
        password = PASSWORDS[user].replace("\\", "\\\\").replace('"', '\\"')
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "authority.pem"),
        }

    def certificate(self, user: str) -> dict[str, str]:
        """The options of a user with a certificate."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "authority.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / f"{user}.pem"),
        }

    def closed_certificate(self, user: str) -> dict[str, str]:
        """The same, in a file whose key only `KEY_PASSWORD` opens."""
        return {
            **self.certificate(user),
            "ssl.keystore.location": str(self.folder / f"{user}-closed.pem"),
            "ssl.key.password": KEY_PASSWORD,
        }


@contextlib.contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    """Start it; its one administrator is `ROOT_USER`."""
    authority = _Authority("Test Authority")
    (folder / "authority.pem").write_bytes(authority.certificate)
    (folder / "server.pem").write_bytes(authority.signed("localhost", server=True))
    for user in RIGHTS:
        (folder / f"{user}.pem").write_bytes(authority.signed(user))
        closed = authority.signed(user, password=KEY_PASSWORD)
        (folder / f"{user}-closed.pem").write_bytes(closed)
    sasl, mutual, controller = (embedded.free_port() for _ in range(3))
    (folder / "log4j2.yaml").write_text(LOG4J)
    properties = folder / "server.properties"
    text = server_properties(folder / "data", sasl, controller)
    properties.write_text(text + _properties(folder, sasl, mutual, controller))
    java = embedded._java(folder, 512, None)
    users = [f"{MECHANISM}=[name={user},password={word}]" for user, word in _stored()]
    subprocess.run(
        [
            *(*java, "kafka.tools.StorageTool", "format", "--standalone"),
            *("-t", embedded._new_cluster_id(), "-c", str(properties)),
            *(word for user in users for word in ("--add-scram", user)),
        ],
        check=True,
        capture_output=True,
    )
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log, cwd=folder
        )
    try:
        found = SecuredBroker(f"{HOST}:{sasl}", f"{HOST}:{mutual}", folder)
        _grant(found, process)
        yield found
    finally:
        process.terminate()
        process.wait(30)


def _stored() -> list[tuple[str, str]]:
    """The storage tool reads a password to the next comma or bracket, in quotes as it is."""
    return [
        (user, f'"{password}"' if '"' not in password else password)
        for user, password in PASSWORDS.items()
    ]


def _properties(folder: Path, sasl: int, mutual: int, controller: int) -> str:
    lines: Mapping[str, Any] = {
        "listeners": f"SASL_SSL://{HOST}:{sasl},SSL://{HOST}:{mutual},"
        f"CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"SASL_SSL://{HOST}:{sasl},SSL://{HOST}:{mutual}",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "SSL",
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security"
        ".scram.ScramLoginModule required;",
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "server.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "authority.pem",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ROOT_USER};User:localhost;User:ANONYMOUS",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _grant(broker: SecuredBroker, process: subprocess.Popen[bytes]) -> None:
    """Wait until it answers, and say what its users may do."""
    options = python_options(broker.login(ROOT_USER), "admin")
    until = time.monotonic() + START_S
    while True:
        if process.poll() is not None or time.monotonic() > until:
            raise AssertionError((broker.folder / "broker.log").read_text()[-3000:])
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=broker.sasl, bootstrap_timeout_ms=3000, **options
            )
            break
        except (KafkaError, OSError):
            time.sleep(0.2)
    topics = ResourcePattern(ResourceType.TOPIC, TAG, ACLResourcePatternType.PREFIXED)
    with admin:
        admin.create_acls(
            [
                ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, topics)
                for user, operations in RIGHTS.items()
                for operation in operations
            ]
        )


@dataclass(frozen=True)
class Right:
    """What somebody may do, in the words of the pages."""

    kind: str
    """`topic` or `transactional id`."""
    name: str
    operation: str

    def of(self, user: str) -> ACL:
        """Kafka's rule for it."""
        kind = ResourceType[self.kind.replace(" ", "_").upper()]
        operation = ACLOperation[re.sub(r"\B(?=[A-Z])", "_", self.operation).upper()]
        pattern = ResourcePattern(kind, self.name)
        return ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, pattern)


def let(broker: SecuredBroker, user: str, rights: Iterable[Right]) -> None:
    """Let a user do this and nothing else. When it returns the broker goes by it."""
    wanted = [right.of(user) for right in rights]
    every = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    known = ACLFilter(f"User:{user}", None, ACLOperation.ANY, ACLPermissionType.ANY, every)
    options = python_options(broker.login(ROOT_USER), "admin")
    until = time.monotonic() + START_S
    with KafkaAdminClient(bootstrap_servers=broker.sasl, **options) as admin:
        admin.delete_acls([known])
        admin.create_acls(wanted)
        while set(admin.describe_acls(known)[0]) != set(wanted):
            assert time.monotonic() < until
            time.sleep(0.02)


@dataclass
class SecuredDay(Day):
    """A day whose commands log in as they may; others send its rows, and read them to compare."""

    secured: SecuredBroker = field(kw_only=True)

    def produce(self, made: Sequence[tuple[str, bytes | None]], at_ms: int | None = None) -> None:
        """As somebody who may write, and do just that."""
        with self._as(WRITER, "producer"):
            super().produce(made, at_ms)

    def read_topics(self) -> dict[str, list[tuple[int, int, bytes | None]]]:
        """By what an operator reads."""
        with self._as(ROOT_USER, "consumer"):
            return super().read_topics()

    @contextlib.contextmanager
    def _as(self, user: str, role: Any) -> Iterator[None]:
        before = self.bootstrap, self.client
        self.bootstrap = self.secured.sasl
        self.client = python_options(self.secured.login(user), role)
        try:
            yield
        finally:
            self.bootstrap, self.client = before


def secured_topics(broker: SecuredBroker, tag: str) -> dict[str, str]:
    """Fresh topics, two partitions each, by their streams."""
    names = {stream: f"{TAG}{stream}-{tag}" for stream in STREAMS}
    view = KafkaCluster(broker.sasl, broker.login(ROOT_USER))
    try:
        view.create_topics(dict.fromkeys(names.values(), 2))
    finally:
        view.close()
    return names


_SCENARIO = """
seed = 4
rows = 200
duration_s = 60
start = 2026-01-05T14:30:00Z
partitions = 2
[keys]
count = 40
"""


def scenario(day: Day) -> str:
    """A file for `spillway produce`: messages for the day's topics."""
    path = day.folder / "scenario.toml"
    streams = [f'[streams.{s}]\nkind = "{s}"\ntopic = "{t}"\n' for s, t in day.topics.items()]
    path.write_text(_SCENARIO + "".join(streams))
    return str(path)


def shown_by_processes(word: str) -> list[list[str]]:
    """The command lines that have a password, or a word of it."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if word in " ".join(line)]


def kept_in(folder: Path, word: str) -> list[Path]:
    """The files that have it: logs of Airflow, Spark and the stream, Airflow's database with its
    XComs and rendered fields, the tables."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "airflow.db" for path in files)
    assert any(path.name == "stream.log" for path in files)
    return [path for path in files if word.encode() in path.read_bytes()]


def _closed(key: bytes, password: str) -> bytes:
    """A private key that a password opens, in the one form that Kafka's Java client reads."""
    how = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", f"pass:{password}"]
    return subprocess.run(how, input=key, stdout=subprocess.PIPE, check=True).stdout


class _Authority:
    """Signs certificates for a day."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        made = self._of(self._name, self._key).add_extension(constraints, critical=True)
        self.certificate = made.sign(self._key, hashes.SHA256()).public_bytes(
            serialization.Encoding.PEM
        )

    def signed(self, name: str, *, server: bool = False, password: str = "") -> bytes:
        """A private key and its certificate, as PEM. `password`: what opens the key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._of(subject, key)
        if server:
            address = x509.IPAddress(ipaddress.ip_address(HOST))
            names = x509.SubjectAlternativeName([x509.DNSName("localhost"), address])
            made = made.add_extension(names, critical=False)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        if password:
            private = _closed(private, password)
        certificate = made.sign(self._key, hashes.SHA256())
        return private + certificate.public_bytes(serialization.Encoding.PEM)

    def _of(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
