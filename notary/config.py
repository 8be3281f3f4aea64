"""Configuration: `notary.toml`, then `NOTARY_*` environment variables, then flags. A later source wins (docs/configuration.md).

Each package declares its own settings as structs, with their defaults and ranges; `Config` composes them. A section of the file is one
struct, or several (`[worker]`, `[limits]`). Every setting has one name: `[http] listen` in the file is `NOTARY_HTTP_LISTEN` in the
environment. A key that is not a setting is an error in every source, so that a misspelt key never silently leaves a default. Paths in the
file are relative to the file. No setting changes a decision (R6), except the notary's name, which is part of every transaction id and never
changes.
"""

import contextlib
import difflib
import os
import re
import socket
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
from msgspec import Meta

from joiner import DriverSettings, JoinerLimits, QueueLimits, SenderSettings
from notary.access import read_secret, why_unreadable
from notary.archive.settings import ArchiveSettings
from notary.http.settings import HttpSettings, parse_listen
from notary.index import IndexSettings
from notary.keys import KeyAndHistory
from notary.logs import LoggingSettings
from notary.quota import QuotaSettings
from notary.receipts.key_history import ENDORSEMENT_HEAD
from notary.self_check import SelfCheckSettings
from notary.snapshots.settings import SnapshotSettings
from notary.tls import TlsFiles, expiry_s
from notary.tracing import TracingSettings
from ordering.connection import KafkaSecurity
from ordering.errors import ConfigurationError
from ordering.ids import NAME_BYTES_MAX as NAME_BYTES_MAX  # for `notary init` too
from ordering.settings import LogSettings, Positive, Seconds

_ENVIRONMENT_OF_OTHERS = {  # deploy.local's, the client's, and that of deploy/one-box/compose.yaml
    *("NOTARY_KAFKA_HOME", "NOTARY_KAFKA_TOOLS_HOME", "NOTARY_JMX_HOME", "NOTARY_KNOWN_NOTARIES", "NOTARY_IMAGE"),
}
_OF_A_SERVICE = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)").fullmatch
"""The endings of the names that Kubernetes makes of a Service's name, its "service links"."""
_WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
_GIVEN = "Put the {} from the brokers' operator there"
_OUT_OF_RANGE = re.compile(r"Expected (int|float) [<>]=").match
_NO_CHOICE: Final = "Invalid enum value "
_WORKER: Final = Meta(extra={"section": "worker"})
_LIMITS: Final = Meta(extra={"section": "limits"})
_NO_SETTINGS: Final = ("directory", "file")


class WorkerSettings(msgspec.Struct, frozen=True):
    """The worker's identity. An empty name is the host's."""

    name: str = ""


class ServiceSettings(msgspec.Struct, frozen=True):
    """Settings for the end of a service."""

    drain_ms_max: Positive = 20_000
    """The longest time for which a stopping worker still answers submissions that it has admitted."""

    drain_s_max = Seconds("drain_ms_max")


class Config(msgspec.Struct, frozen=True):
    """Everything `notary serve` needs."""

    name: str
    origin: str
    key_file: str = "notary-key.pem"
    key_history_file: str = "notary-keys.json"
    parties_file: str = "parties.json"
    log: LogSettings = LogSettings()
    worker: WorkerSettings = WorkerSettings()
    joiner: Annotated[JoinerLimits, _WORKER] = JoinerLimits()
    driver: Annotated[DriverSettings, _WORKER] = DriverSettings()
    sender: Annotated[SenderSettings, _WORKER] = SenderSettings()
    self_check: Annotated[SelfCheckSettings, _WORKER] = SelfCheckSettings()
    service: Annotated[ServiceSettings, _WORKER] = ServiceSettings()
    logging: Annotated[LoggingSettings, _WORKER] = LoggingSettings()
    http: HttpSettings = HttpSettings()
    queue: Annotated[QueueLimits, _LIMITS] = QueueLimits()
    quota: Annotated[QuotaSettings, _LIMITS] = QuotaSettings()
    index: IndexSettings = IndexSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    archive: ArchiveSettings = ArchiveSettings()
    tracing: TracingSettings = TracingSettings()
    directory: str = ""
    """The folder of the configuration file. It is no setting."""
    file: str = ""
    """The configuration file, for the commands that a worker starts. It is no setting."""

    def path(self, relative: str) -> Path:
        """Returns the complete path for a path in the file, which is relative to the file's folder."""
        return Path(self.directory) / relative

    @property
    def key_files(self) -> KeyAndHistory:
        """The files of the notary's key and its history."""
        return KeyAndHistory(self.path(self.key_file), self.path(self.key_history_file), self.origin)

    @property
    def index_directory(self) -> Path:
        """This worker's index."""
        return self.path(self.index.directory) / self.worker.name

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files for TLS on `http.listen`; None for plain HTTP."""
        http = self.http
        if not http.tls_cert_file:
            return None
        return TlsFiles(
            cert_file=str(self.path(http.tls_cert_file)),
            key_file=str(self.path(http.tls_key_file)),
            client_ca_file=str(self.path(http.tls_client_ca_file)) if http.tls_client_ca_file else "",
            client_cert_required=http.tls_client_cert == "required",
        )

    def with_log_of(self, other: "Config") -> "Config":
        """Returns this configuration with the log of another one, and with that log's certificates where they are."""
        files = ("ca_file", "cert_file", "key_file", "sasl_password_file")
        paths = {file: str(other.path(relative).absolute()) for file in files if (relative := getattr(other.log, file))}
        return msgspec.structs.replace(self, log=msgspec.structs.replace(other.log, **paths))

    @property
    def kafka_security(self) -> KafkaSecurity | None:
        """The security of connections to the brokers; None for plain text."""
        return kafka_security(self.log, Path(self.directory))

    @property
    def log_certificates_end_s(self) -> float | None:
        """When `log.cert_file` or `log.ca_file` expires first, as they are now, in seconds since 1970; None if neither can be read."""
        log = self.log
        ends_s = [expiry_s(self.path(log.cert_file))] if log.cert_file else []
        ends_s += [expiry_s(self.path(log.ca_file), authorities=True)] if log.ca_file else []
        return min([each for each in ends_s if each is not None], default=None)


class Setting(msgspec.Struct, frozen=True):
    """One setting: its section in the file, empty for the top level, its key there, and the member of `Config` that holds it."""

    section: str
    key: str
    member: str
    default: Any
    type: Any
    range: Meta | None = None

    @property
    def name(self) -> str:
        """Its name in messages and among flags."""
        return f"{self.section}.{self.key}".lstrip(".")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "NOTARY_" + self.name.replace(".", "_").upper()

    def value(self, config: Config) -> object:
        """Returns its value in a configuration."""
        return getattr(getattr(config, self.member) if self.member else config, self.key)


def _settings() -> Iterator[Setting]:
    for member in msgspec.structs.fields(Config):
        kind, meta = _annotated(member.type)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            section = member.name if meta is None else (meta.extra or {})["section"]
            for field in msgspec.structs.fields(kind):
                of, limits = _annotated(field.type)
                if limits is None or "fixed" not in (limits.extra or {}):
                    yield Setting(section, field.name, member.name, field.default, of, limits)
        elif member.name not in _NO_SETTINGS:
            yield Setting("", member.name, "", member.default, kind, meta)


def _annotated(type_: Any) -> tuple[Any, Meta | None]:
    return get_args(type_) if get_origin(type_) is Annotated else (type_, None)


SETTINGS: Final = {setting.name: setting for setting in _settings()}
"""All settings, by name."""
_VARIABLES: Final = {setting.variable: setting for setting in SETTINGS.values()}
_IS_INTEGER: Final = re.compile(r"-?[0-9]+").fullmatch
_SECTIONS: Final = {setting.section for setting in SETTINGS.values()} - {""}


def kafka_security(log: LogSettings, directory: Path) -> KafkaSecurity | None:
    """Returns TLS and SASL as `[log]` sets them; None for plain text. Its files are relative to `directory`."""
    for key, what in _wrong_security(log):
        raise ConfigurationError(f"log.{key} {what}")
    if log.security_protocol == "PLAINTEXT":
        return None

    def file(relative: str) -> str | None:
        return str(directory / relative) if relative else None

    password = None
    if log.sasl_password_file:
        password_file = directory / log.sasl_password_file
        try:
            password = read_secret(password_file, "log.sasl_password_file", _GIVEN.format("password")).decode().strip()
        except UnicodeDecodeError as problem:
            raise ConfigurationError(f"log.sasl_password_file {password_file} is not UTF-8 text: {problem}") from None
    # Without a `key_file` the private key is in the certificate's file.
    if key_file := file(log.key_file or log.cert_file):
        read_secret(Path(key_file), "log.key_file" if log.key_file else "log.cert_file", _GIVEN.format("key"))
    return KafkaSecurity(
        protocol=log.security_protocol,
        ca_file=file(log.ca_file),
        cert_file=file(log.cert_file),
        key_file=file(log.key_file),
        sasl_mechanism=log.sasl_mechanism,
        sasl_user=log.sasl_username or None,
        sasl_password=password,
    )


def load(file: Path, flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Returns the configuration of a file, the environment and flags (`{"http.listen": ...}`; None if not given).

    Raises `ConfigurationError`, which names file and key.
    """
    try:
        tree = read_toml(file)
    except OSError as problem:
        raise ConfigurationError(f"cannot read the configuration {file}: {why_unreadable(file, problem)}") from None
    except ValueError as problem:
        raise ConfigurationError(f"{file} is not TOML, or has a value that none may have: {problem}") from None
    values: dict[str, Any] = {}  # by the setting's name
    for key, value in tree.items():
        if key not in _SECTIONS:
            values[_known(file, "", key)] = value
        elif isinstance(value, dict):
            values |= {_known(file, key, inner): inside for inner, inside in value.items()}
        else:
            raise _wrong(file, {}, key, f"is a section, `[{key}]`, and not a value: {value!r}")
    sources: dict[str, str] = {}  # setting -> where its value came from, if not from the file
    given = os.environ if environment is None else environment
    for variable, text in given.items():
        if variable in _VARIABLES:
            name = _VARIABLES[variable].name
            values[name] = _number(text, SETTINGS[name].type) if SETTINGS[name].type in (int, float) else text
            sources[name] = f"the environment variable {variable}"
        elif variable.startswith("NOTARY_") and variable not in _ENVIRONMENT_OF_OTHERS and not _is_of_a_service(variable, given):
            nearest = difflib.get_close_matches(variable, _VARIABLES, 1, 0.0)[0]
            raise ConfigurationError(
                f"the environment variable {variable} names no setting; the nearest setting is {nearest}. See docs/configuration.md"
            )
    for name, value in (flags or {}).items():
        if value is not None:
            values[name], sources[name] = value, f"the flag --{SETTINGS[name].key.replace('_', '-')}"
            if value == "":  # a variable of a script that is not set
                raise _wrong(file, sources, name, "is empty: give a value, or leave the flag out")
    values["worker.name"] = values.get("worker.name") or socket.gethostname()
    if "snapshots.url" in sources and not values["snapshots.url"]:
        values["snapshots.every_s"] = 0  # an empty variable turns off the snapshots of the file
    members: dict[str, Any] = {"directory": str(file.absolute().parent), "file": str(file.absolute())}
    for name, value in values.items():
        setting = SETTINGS[name]
        (members.setdefault(setting.member, {}) if setting.member else members)[setting.key] = value
    try:
        config = msgspec.convert(members, Config)
    except msgspec.ValidationError as problem:
        what, _, place = str(problem).replace("`", "").partition(" - at $.")
        member, _, key = place.rpartition(".")
        at = next((setting for setting in SETTINGS.values() if (setting.member, setting.key) == (member, key)), None)
        if at is not None and _OUT_OF_RANGE(what):
            what = _out_of_range(at, values[at.name])
        elif at is not None and what.startswith(_NO_CHOICE):
            what += f": give one of {', '.join(get_args(at.type))}"
        elif at is not None:
            what = f"{values[at.name]!r}: {what[:1].lower() + what[1:]}"
        raise _wrong(file, sources, "" if at is None else at.name, what[:1].lower() + what[1:]) from None
    for name, what in _wrong_values(config):
        raise _wrong(file, sources, name, what)
    return config


def read_toml(file: Path) -> dict[str, Any]:
    """Returns the content of a TOML file. Raises `OSError`; `ValueError` if it is not TOML, or a text has NUL, which no path may have."""
    try:
        tree = tomllib.loads(file.read_bytes().decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _refuse_nul(tree, "")
    return tree


def _refuse_nul(value: object, name: str) -> None:
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{name} has a NUL character")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        _refuse_nul(each, f"{name}.{key}".lstrip("."))


def _number(text: str, kind: Any) -> Any:
    """Returns the number in the text of a variable; the text itself if it is none, or no integer where one is needed."""
    if kind is int and not _IS_INTEGER(text):
        return text  # msgspec takes 1e5 too
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(text, kind, strict=False)
    return text


def _known(file: Path, section: str, key: str) -> str:
    """Returns the name of the setting of a section and key. Raises `ConfigurationError`, with the nearest name, if there is none."""
    name = f"{section}.{key}".lstrip(".")
    if name in SETTINGS and SETTINGS[name].key == key:
        return name
    known = [setting.key for setting in SETTINGS.values() if setting.section == section] + ([] if section else sorted(_SECTIONS))
    nearest = difflib.get_close_matches(key, known, 1, 0.0)[0]
    raise _wrong(file, {}, section, f"{key} names no setting; the nearest setting is {nearest}. See docs/configuration.md")


def _out_of_range(setting: Setting, value: object) -> str:
    limits = setting.range
    assert limits is not None
    return f"{value} should be {limits.ge} to {limits.le}{f', {limits.description}' if limits.description else ''}"


def _wrong(file: Path, sources: Mapping[str, str], setting: str, what: str) -> ConfigurationError:
    source = f" (from {sources[setting]})" if setting in sources else ""
    return ConfigurationError(f"{file}: {setting or 'top level'}{source}: {what}")


def _wrong_values(config: Config) -> Iterator[tuple[str, str]]:
    """Yields (setting, problem) for each wrong value that the types do not exclude."""
    try:
        name_bytes = len(config.name.encode())
    except UnicodeEncodeError:
        yield "name", "is not UTF-8"
        return
    if not 0 < name_bytes <= NAME_BYTES_MAX:
        yield "name", f"should have 1 to {NAME_BYTES_MAX} bytes of UTF-8, and has {name_bytes}"
    if (why := _wrong_origin(config.origin)) is not None:
        yield "origin", why
    if _WORKER_NAME(config.worker.name) is None:
        yield (
            "worker.name",
            f"{config.worker.name!r} should be 1 to 100 letters, digits, dots, dashes, underscores: it names the index's folder",
        )
    if config.log.kind == "kafka" and not config.log.bootstrap:
        yield "log.bootstrap", "is empty, and log.kind is kafka: give the brokers, HOST:PORT,..."
    for key, what in _wrong_security(config.log):
        yield f"log.{key}", what
    http = config.http
    for key, needs in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file"), ("tls_client_ca_file", "tls_cert_file")):
        if getattr(http, key) and not getattr(http, needs):
            yield f"http.{needs}", f"is empty, and http.{key} is set: give both, or neither for plain HTTP"
    if http.tls_client_cert == "optional" and not http.tls_client_ca_file:
        yield "http.tls_client_cert", "is optional, and http.tls_client_ca_file is empty: set it to the authority of these certificates"
    if config.snapshots.every_s and not config.snapshots.url:
        yield "snapshots.url", "is empty, and snapshots.every_s is set: give the folder or URL that keeps the snapshots"
    if config.archive.url and config.log.kind != "kafka":
        yield (
            "archive.url",
            f"is set, and log.kind is {config.log.kind}: only one process can open that log, its worker. Leave archive.url empty",
        )
    for setting in SETTINGS.values():
        # To msgspec NaN is in every range.
        if setting.type is float and (value := setting.value(config)) != value:
            yield setting.name, _out_of_range(setting, value)
    if config.tracing.endpoint and not config.tracing.endpoint.startswith(("http://", "https://")):
        yield "tracing.endpoint", f"{config.tracing.endpoint!r} should be a URL for OTLP over HTTP: e.g. http://127.0.0.1:4318/v1/traces"
    for key in ("listen", "health_listen"):
        text = getattr(config.http, key)
        if text or key == "listen":
            try:
                parse_listen(text)
            except ConfigurationError as problem:
                yield f"http.{key}", str(problem)


def _wrong_security(log: LogSettings) -> Iterator[tuple[str, str]]:
    """Yields (key of `[log]`, problem) for TLS and SASL. A file that is not used would hide that the log is read in plain text."""
    protocol = log.security_protocol
    tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for keys, used in ((("ca_file", "cert_file", "key_file"), tls), (("sasl_username", "sasl_password_file"), sasl)):
        for key in keys:
            if getattr(log, key) and not used:
                yield key, f"is set, and log.security_protocol is {protocol}, which does not use it: correct one of the two"
    for key in ("sasl_username", "sasl_password_file"):
        if sasl and not getattr(log, key):
            yield key, f"is empty, and log.security_protocol is {protocol}: give user and password"
    if log.key_file and not log.cert_file:
        yield "cert_file", "is empty, and log.key_file is set: give both, or neither where brokers ask for no certificate"


def check_origin(origin: str) -> None:
    """Raise `ConfigurationError` unless the origin can name the key of a C2SP signed note."""
    if (why := _wrong_origin(origin)) is not None:
        raise ConfigurationError(f"the origin {why}")


def _wrong_origin(origin: str) -> str | None:
    if origin == ENDORSEMENT_HEAD:
        return f"{origin!r} is the first line of key endorsements, so a checkpoint could pass for one: choose another origin"
    size = len(origin.encode(errors="surrogatepass"))
    if size > NAME_BYTES_MAX:
        return f"should have 1 to {NAME_BYTES_MAX} bytes of UTF-8, and has {size}"
    if origin and "+" not in origin and not any(character.isspace() or character < " " for character in origin):
        with contextlib.suppress(UnicodeEncodeError):
            origin.encode()
            return None
    return f"{origin!r} must not be empty or contain white space, control characters or `+`: e.g. notary.example/london"


def _is_of_a_service(variable: str, environment: Collection[str]) -> bool:
    """Returns True if Kubernetes made the variable for a Service of the namespace whose name begins with `notary`.

    Kubernetes always makes `<SERVICE>_SERVICE_HOST` too. Without that, `NOTARY_HTTP_PORT` is a mistake of the operator.
    """
    for host in environment:
        service = host.removesuffix("_SERVICE_HOST")
        is_its_own = service != host and (service + "_").startswith("NOTARY_") and variable.startswith(service + "_")
        if is_its_own and _OF_A_SERVICE(variable[len(service) + 1 :]):
            return True
    return False
