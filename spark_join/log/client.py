"""Connection settings of aiokafka's clients, from those of Java's clients."""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

from spark_join.errors import CouldNotVerify
from spark_join.log.kafka import Kafka

_TRUST, _KEY = "ssl.truststore", "ssl.keystore"
_KNOWN: Final = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    *(f"{store}.{what}" for store in (_TRUST, _KEY) for what in ("type", "location")),
}
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ESCAPED: Final = re.compile(r"\\(.)")
_SECRET: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def client_settings(kafka: Kafka) -> dict[str, Any]:
    """Returns the keyword arguments with which aiokafka's clients connect as Java's do with these properties: PEM files, PLAIN or SCRAM.

    Raises `CouldNotVerify` for a security property that has no equivalent.
    """
    given = {name: value for name, value in kafka.properties.items() if name.startswith(("security.", "ssl.", "sasl."))}
    if unknown := sorted(given.keys() - _KNOWN):
        raise CouldNotVerify(f"aiokafka cannot connect with {', '.join(unknown)}: it takes {', '.join(sorted(_KNOWN))}")
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
        settings["sasl_mechanism"] = given.get("sasl.mechanism", "GSSAPI")
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
            context.load_cert_chain(key, password=given.get("ssl.key.password"))
    except OSError as problem:  # SSLError is one
        raise CouldNotVerify(f"the files of ssl.truststore.location and ssl.keystore.location cannot be used: {problem}") from None
    context.check_hostname = bool(given.get("ssl.endpoint.identification.algorithm", "https"))
    return context
