"""A cluster, and the settings with which aiokafka connects to it, from those of Java's clients."""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from spark_join.errors import CouldNotVerify

API_MS_MAX: Final = 30_000
"""Deadline of one query to the cluster, with all its retries, unless `default.api.timeout.ms` is given."""
REQUEST_MS_MAX: Final = 10_000
"""Deadline of one reply of a broker to such a query, unless `request.timeout.ms` is given."""

_API, _REQUEST = "default.api.timeout.ms", "request.timeout.ms"
_TRUST, _KEY = "ssl.truststore", "ssl.keystore"
PROPERTIES: Final = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    *(f"{store}.{what}" for store in (_TRUST, _KEY) for what in ("type", "location")),
    _API,
    _REQUEST,
}
"""The properties of Java's clients that are honoured."""
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,10}").fullmatch
"""An int of Java's, which ends at 2^31 - 1. (Python refuses to convert more than 4,300 digits.)"""
_ESCAPED: Final = re.compile(r"\\(.)")
_SECRET: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


class Kafka(msgspec.Struct, frozen=True):
    """A cluster, and the prefix of a notary's topics in it."""

    bootstrap: str
    prefix: str
    properties: Mapping[str, str]
    """Connection properties, by the names of Kafka's Java clients."""

    @property
    def ordering(self) -> str:
        """The ordering topic."""
        return f"{self.prefix}.ordering"

    @property
    def payload(self) -> str:
        """The payload topic."""
        return f"{self.prefix}.payload"


def decode_properties(content: bytes) -> str:
    """Returns the text of a Java properties file: UTF-8, or Latin-1 if it is not UTF-8, which is Java's own encoding for these files."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def parse_properties(session: SparkSession, text: str) -> dict[str, str]:
    """Parses the text of a Java properties file."""
    jvm: Any = session.sparkContext._jvm
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.StringReader(text))
    return {name: properties.getProperty(name) for name in properties.stringPropertyNames()}


def time_limits(kafka: Kafka) -> tuple[int, int]:
    """Returns the deadlines of a query and of one reply, in milliseconds. Raises `CouldNotVerify` if one is no positive number."""
    limits = []
    for name, default in ((_API, API_MS_MAX), (_REQUEST, REQUEST_MS_MAX)):
        given = kafka.properties.get(name, str(default))
        if _MILLISECONDS(given) is None or not 0 < int(given) < 1 << 31:
            raise CouldNotVerify(f"{name} is {given!r}: it should be a number of milliseconds, such as {default}")
        limits.append(int(given))
    return limits[0], limits[1]


def client_settings(kafka: Kafka) -> dict[str, Any]:
    """Returns the keyword arguments with which aiokafka's clients connect as Java's do with these properties: PEM files, PLAIN or SCRAM.

    Raises `CouldNotVerify` for a security property that has no equivalent.
    """
    given = {name: value for name, value in kafka.properties.items() if name.startswith(("security.", "ssl.", "sasl."))}
    if unknown := sorted(given.keys() - PROPERTIES):
        raise CouldNotVerify(f"aiokafka cannot connect with {', '.join(unknown)}: it takes {', '.join(sorted(PROPERTIES))}")
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise CouldNotVerify(f"security.protocol is {protocol}, and not one of {', '.join(_PROTOCOLS)}")
    settings: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "security_protocol": protocol}
    if protocol.endswith("SSL"):
        settings["ssl_context"] = _tls(given)
    if protocol.startswith("SASL"):
        secrets = dict(_SECRET.findall(given.get("sasl.jaas.config", "")))
        if secrets.keys() != {"username", "password"}:
            raise CouldNotVerify('aiokafka needs a sasl.jaas.config with username="…" and password="…"')
        mechanism = given.get("sasl.mechanism", "GSSAPI")
        if mechanism not in _MECHANISMS:
            raise CouldNotVerify(f"sasl.mechanism is {mechanism}, and not one of {', '.join(_MECHANISMS)}")
        settings["sasl_mechanism"] = mechanism
        settings["sasl_plain_username"] = _ESCAPED.sub(r"\1", secrets["username"])
        settings["sasl_plain_password"] = _ESCAPED.sub(r"\1", secrets["password"])
    return settings


def _tls(given: Mapping[str, str]) -> ssl.SSLContext:
    for store in (_TRUST, _KEY):
        if f"{store}.location" in given and given.get(f"{store}.type") != "PEM":
            raise CouldNotVerify(f"aiokafka reads PEM files only: set {store}.type=PEM, and {store}.location to such a file")
    try:
        context = ssl.create_default_context(cafile=given.get(f"{_TRUST}.location"))
        if key := given.get(f"{_KEY}.location"):
            context.load_cert_chain(key, password=given.get("ssl.key.password", ""))  # with None OpenSSL would ask at the terminal
    except (OSError, ValueError) as problem:  # SSLError is an OSError
        raise CouldNotVerify(f"the files of ssl.truststore.location and ssl.keystore.location cannot be used: {problem}") from None
    context.check_hostname = bool(given.get("ssl.endpoint.identification.algorithm", "https"))
    return context
