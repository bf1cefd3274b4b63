"""Client options: the Java client's names, for Spark as they are, for kafka-python translated.

`kafka.options` in the settings is one table of Java names. Spark's source takes it whole (each
name behind `kafka.`); kafka-python has its own names, types and fewer options. The translation is
pure: names to names, text to the type of kafka-python's own default.

An option of another role (a consumer's, asked for by a producer) and one that only tunes the Java
client is left out. One that concerns security (`security.`, `sasl.`, `ssl.`) and has no
translation is refused: leaving it out could mean to talk to the wrong party or in clear text.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from spillway_schemas.exits import USAGE
from spillway_schemas.secret import Options, revealed, unescaped

Role = Literal["admin", "consumer", "producer"]

_SECURITY = ("security.", "sasl.", "ssl.")
_RENAMED = {
    "ssl.cipher.suites": "ssl_ciphers",
    "linger.ms": "linger_ms",
    "max.request.size": "max_request_size",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "send.buffer.bytes": "send_buffer_bytes",
    "receive.buffer.bytes": "receive_buffer_bytes",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
}
COMMITTED_ALONE: dict[str, Any] = {
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
}
"""Of kafka-python's consumers: what is not for users to choose. It goes over their options."""
_JAAS = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")

_KEY = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----(.*?)-----END", re.DOTALL)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
"""Its object identifier. Java decrypts by it, but not where the Kafka client asks (JDK-8231581)."""


class OptionError(ValueError):
    """An option of `kafka.options` that kafka-python cannot have."""

    exit_code = USAGE


def python_options(options: Options, role: Role) -> dict[str, Any]:
    """kafka-python's keyword arguments for a client of `role`.

    Raises OptionError for a value of the wrong type, and for a security option that kafka-python
    has no counterpart of.
    """
    defaults = _defaults(role)
    known = _defaults("admin") | _defaults("consumer") | _defaults("producer")
    found: dict[str, Any] = {}
    opened = revealed(options)
    for name, value in opened.items():
        special = _special(name, value, opened)
        if special is not None:
            found |= {k: v for k, v in special.items() if k in defaults}
            continue
        ours = _RENAMED.get(name, name.replace(".", "_").replace("-", "_"))
        if ours in defaults:
            found[ours] = _typed(name, value, defaults[ours])
        elif ours not in known and name.startswith(_SECURITY):
            raise OptionError(
                f"kafka.options: {name} has no counterpart in kafka-python, which spillway uses "
                "beside Spark. Supported: security.protocol, sasl.mechanism (PLAIN, SCRAM-*, "
                "GSSAPI), sasl.jaas.config with username and password, ssl.* with PEM files"
            )
    return found


def check_files(options: Options) -> None:
    """Raise OptionError where a store that the options name cannot be read: by nobody, or not by
    the Java client, which knows fewer forms of keys than Python."""
    opened = revealed(options)
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        path = opened.get(name)
        if path is None:
            continue
        if os.path.isdir(path):
            raise OptionError(f"kafka.options: {name} = {path!r} is a folder: name the PEM file")
        if not os.access(path, os.R_OK):
            is_there = "cannot be read by this user" if os.path.exists(path) else "is not there"
            raise OptionError(f"kafka.options: {name} = {path!r} {is_there}")
    path = opened.get("ssl.keystore.location")
    if path is not None and (form := _unknown_to_java(Path(path).read_text(errors="replace"))):
        raise OptionError(
            f"kafka.options: the key in {path!r} is {form}, which Kafka's Java client cannot read. "
            "Write it as PKCS#8 in the older encryption: `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES` "
            "(or -nocrypt), with the certificate behind it"
        )


def _unknown_to_java(pem: str) -> str | None:
    """What form the private key of a PEM file is in that Java has not; None where it has."""
    if (key := _KEY.search(pem)) is None or key[1] == "":
        return None
    if key[1] != "ENCRYPTED ":
        return f"in the form {key[1]}PRIVATE KEY"
    try:
        is_new = _PBES2 in base64.b64decode(key[2])[:32]
    except ValueError:
        return None  # whoever reads it says so
    return "encrypted by PBES2" if is_new else None


def _defaults(role: Role) -> dict[str, Any]:
    # Imported here: kafka-python takes 0.2 s, which a command that reads no topic should not pay.
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    client = {"admin": KafkaAdminClient, "consumer": KafkaConsumer, "producer": KafkaProducer}
    found: dict[str, Any] = client[role].DEFAULT_CONFIG
    return found


def _special(name: str, value: str, options: Mapping[str, str]) -> dict[str, Any] | None:
    """Options whose meaning is spelt differently; None for all others."""
    if name == "sasl.jaas.config":
        fields = {m[1]: _unquoted(m) for m in _JAAS.finditer(value)}
        if "username" not in fields or "password" not in fields:
            raise OptionError(
                "kafka.options: sasl.jaas.config needs username and password (kafka-python knows "
                "the PLAIN and SCRAM login modules)"
            )
        return {
            "sasl_plain_username": fields["username"],
            "sasl_plain_password": fields["password"],
        }
    if name == "ssl.endpoint.identification.algorithm":
        return {"ssl_check_hostname": value.lower() == "https"}
    if name in ("ssl.truststore.location", "ssl.keystore.location"):
        kind = options.get(name.replace("location", "type"), "JKS")
        if kind.upper() != "PEM":
            raise OptionError(
                f"kafka.options: {name} is no PEM store, and Python reads no other. Convert it to "
                f"PEM and set {name.replace('location', 'type')} = 'PEM'"
            )
        if name.startswith("ssl.truststore"):
            return {"ssl_cafile": value}
        return {"ssl_certfile": value, "ssl_keyfile": value}
    if name in ("ssl.truststore.type", "ssl.keystore.type", "ssl.truststore.password"):
        return {}
    if name in ("ssl.key.password", "ssl.keystore.password"):
        return {"ssl_password": value}
    return None


def _unquoted(field: re.Match[str]) -> str:
    """A field's value as Java's login parser reads it."""
    quoted = field[2] if field[2] is not None else field[3]
    return field[4] if quoted is None else unescaped(quoted)


def _typed(name: str, value: str, default: Any) -> Any:
    """Text as the type of kafka-python's default: whole number, truth, or text."""
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise OptionError(f"kafka.options: {name} must be true or false")
        return value.lower() == "true"
    if isinstance(default, int | float) or name.endswith((".ms", ".bytes")):
        if name == "acks" and value == "all":
            return value
        try:
            return int(value)
        except ValueError:
            raise OptionError(f"kafka.options: {name} must be a number") from None
    return value
