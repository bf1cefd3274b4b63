"""Why a broker does not take a client, from what kafka-python logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spillway.kafka.options import OptionError, check_files
from spillway.kafka.refusals import Refusals

SENT_AWAY = "KafkaConnectionError: socket disconnected"
PASSWORD = "[Error 58] SaslAuthenticationFailedError: invalid credentials"
ALERT = "KafkaConnectionError: [SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate"
UNTRUSTED = "Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
NO_TLS = (
    "Handshake failed: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"
)
NO_LOGIN = "[Error 34] IllegalSaslStateError"
"""What a listener without TLS, and one without a login, gives who wants them (Kafka 4.1)."""
REFUSED = "KafkaConnectionError: 111 ECONNREFUSED"


def heard(*said: str) -> Refusals:
    with Refusals() as refusals:
        for each in said:
            logging.getLogger("kafka.net.manager").warning(
                "Bootstrap connection to bootstrap-0 failed: %s (backoff 0.04 secs)", each
            )
        logging.getLogger("kafka.net.manager").warning("Bootstrap failed: it took too long")
    return refusals


def why(*said: str, **options: str) -> str:
    return heard(*said).why({name.replace("_", "."): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ([SENT_AWAY, PASSWORD, SENT_AWAY], "the user or the password is wrong"),
        ([SENT_AWAY, "UnsupportedSaslMechanismError"], "no such sasl.mechanism"),
        ([SENT_AWAY, ALERT], "rejects this client's certificate, or requires one"),
        ([UNTRUSTED], "not signed by an authority that this client trusts"),
        (["[SSL: WRONG_VERSION_NUMBER] wrong version number"], "speaks no TLS"),
        ([NO_TLS], "ends the TLS handshake, as a broker without TLS does"),
        ([NO_LOGIN, SENT_AWAY], "takes no login at this address"),
    ],
)
def test_what_was_said_is_told_in_words(said: list[str], meaning: str) -> None:
    found = why(*said)
    assert meaning in found
    assert "backoff" not in found


@pytest.mark.parametrize(
    ("protocol", "wants"),
    [
        ("PLAINTEXT", "TLS or a login"),
        ("ssl", "a login (security.protocol = SASL_SSL) or a client's certificate"),
        ("SASL_SSL", "TLS, or another user or password"),
    ],
)
def test_who_is_sent_away_without_a_word(protocol: str, wants: str) -> None:
    assert f"as a broker does that wants {wants}" in why(SENT_AWAY, security_protocol=protocol)
    assert "wants TLS or a login" in why(SENT_AWAY)


def test_where_nobody_answers_nobody_refuses() -> None:
    assert why(REFUSED) == ""
    assert why() == ""


@pytest.mark.parametrize(
    ("said", "certain"),
    [
        ([], False),
        ([REFUSED] * 9, False),
        ([SENT_AWAY] * 3, False),
        ([SENT_AWAY] * 4, True),
        ([SENT_AWAY] * 5, True),
        ([*[SENT_AWAY] * 4, REFUSED], False),  # it may be starting
        ([SENT_AWAY, PASSWORD], True),
        ([REFUSED, UNTRUSTED], True),
        ([NO_LOGIN], True),
        ([NO_TLS] * 3, False),
        ([NO_TLS, NO_TLS, SENT_AWAY, NO_TLS], True),
        ([*[NO_TLS] * 4, REFUSED], False),
    ],
)
def test_only_who_was_told_stops_trying(said: list[str], certain: bool) -> None:
    assert heard(*said).is_certain == certain


def test_secrets_are_not_repeated() -> None:
    login = 'Module required username="me" password="hunter22";'
    found = why(f"SaslAuthenticationFailedError: hunter22 {SENT_AWAY}", sasl_jaas_config=login)
    assert "hunter22" not in found


def test_the_log_is_listened_to_only_while_it_connects() -> None:
    before = list(logging.getLogger("kafka").handlers)
    with Refusals():
        assert logging.getLogger("kafka").handlers != before
    assert logging.getLogger("kafka").handlers == before


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    there = tmp_path / "ca.pem"
    there.write_text("")
    check_files({"ssl.truststore.location": str(there), "security.protocol": "SSL"})
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        with pytest.raises(OptionError, match=rf"{name} = '.*none\.pem' is not there"):
            check_files({name: str(tmp_path / "none.pem")})


KEY = ec.generate_private_key(ec.SECP256R1())
OPEN = serialization.NoEncryption()
OLDER = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGxMBwGCiqGSIb3DQEMAQMwDgQIy8HTbOBK860CAggABIGQofPXhuREr9SWUuxy
-----END ENCRYPTED PRIVATE KEY-----
"""
"""How `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES` begins."""


def pem(form: serialization.PrivateFormat, password: bytes = b"") -> str:
    closed = serialization.BestAvailableEncryption(password) if password else OPEN
    return KEY.private_bytes(serialization.Encoding.PEM, form, closed).decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (pem(serialization.PrivateFormat.PKCS8), None),
        (OLDER, None),
        (pem(serialization.PrivateFormat.PKCS8, b"secret"), "encrypted by PBES2"),
        (pem(serialization.PrivateFormat.TraditionalOpenSSL), "in the form EC PRIVATE KEY"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nx\n-----END ENCRYPTED PRIVATE KEY-----", None),
        ("no key at all", None),
    ],
    ids=["open", "older", "newer", "traditional", "damaged", "none"],
)
def test_a_key_that_java_cannot_read_is_refused(
    tmp_path: Path, text: str, says: str | None
) -> None:
    """Python reads each of these: `doctor` would find nothing wrong, and the stream not start."""
    path = tmp_path / "me.pem"
    path.write_text(text)
    options = {"ssl.keystore.location": str(path), "ssl.keystore.type": "PEM"}
    if says is None:
        check_files(options)
        return
    with pytest.raises(OptionError, match=f"me.pem' is {says}.*-v1 PBE-SHA1-3DES"):
        check_files(options)
