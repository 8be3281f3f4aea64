"""Configuration: `notary.toml`, then `NOTARY_*` environment variables, then flags; the later wins (docs/configuration.md).

Every setting has one name: `[http] listen` in the file is `NOTARY_HTTP_LISTEN` in the environment. A key that is not a setting is an error
wherever it stands, so that a misspelt one is never silently the default. Paths in the file are relative to the file.
None of these settings changes a decision (R6), except the notary's name, which is part of every transaction id and never changes.
"""

import contextlib
import difflib
import os
import re
import socket
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from joiner import DriverSettings, JoinerLimits
from notary.access import read_secret, why_unreadable
from notary.index import IndexSettings
from notary.receipts.key_history import ENDORSEMENT_HEAD
from notary.self_check import SelfCheckSettings
from ordering.connection import KafkaSecurity
from ordering.errors import ConfigurationError
from ordering.ids import NAME_BYTES_MAX as NAME_BYTES_MAX  # for `notary init` too

_ENVIRONMENT_OF_OTHERS = {"NOTARY_KAFKA_HOME", "NOTARY_SPARK_KAFKA_HOME", "NOTARY_KNOWN_NOTARIES"}  # deploy.local's, and the client's
_OF_A_SERVICE = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)").fullmatch
"""The endings of the names that Kubernetes makes of a Service's name, its "service links"."""
_WORKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
_GIVEN = "Put the {} there that the brokers' operator gave"
_MAY_BE_ZERO = ("party_requests_per_s", "wait_ms_default", "intake_processes", "connections_per_address_max", "every_s", "keep")
_INTAKE_PROCESSES_MAX = 64
_INTEGER_MAX = 1 << 40
_NO_SETTINGS = ("directory", "file", "clock_accepted")  # members of `Config` that no file and no variable sets
_DRIVER = DriverSettings()

_UNKNOWN: Final = "Object contains unknown field "
_NO_CHOICE: Final = "Invalid enum value "


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: which log, and where. Whose it is, its keys and its payload partitions are in the log itself (R10)."""

    kind: Literal["embedded", "kafka"] = "embedded"
    directory: str = "log"
    bootstrap: str = ""
    topic_prefix: str = "notary"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password_file: str = ""
    append_timeout_ms: int = 20_000


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[worker]`: this process. An empty name is the host's."""

    name: str = ""
    data_centre: str = ""
    hole_timeout_ms: int = 1_500
    worker_timeout_ms: int = 30_000
    buffer_bytes_max: int = 128 << 20
    unreachable_ms: int = 3_000
    append_wait_ms_max: int = 5_000
    checkpoint_interval_ms: int = 5_000
    audit_interval_ms: int = 1_000
    scrub_interval_ms: int = 43_200_000
    drain_ms_max: int = 20_000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    clock_behind_ms_max: int = _DRIVER.clock_behind_ms_max
    clock_ahead_ms_max: int = _DRIVER.clock_ahead_ms_max


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[http]`: where the service listens, with how many processes (0: with the worker's alone), and how long it is patient.

    An empty `health_listen` serves health on `listen`. With an empty `tls_cert_file` the service speaks plain HTTP.
    """

    listen: str = "127.0.0.1:8080"
    health_listen: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    tls_client_cert: Literal["required", "optional"] = "required"
    reads: Literal["open", "parties"] = "open"
    intake_processes: int = 0
    connections_max: int = 2_000
    connections_per_address_max: int = 1_000
    head_ms_max: int = 10_000
    body_ms_max: int = 20_000
    keep_alive_ms: int = 75_000
    wait_ms_default: int = 10_000
    wait_ms_max: int = 60_000


class TlsFiles(msgspec.Struct, frozen=True):
    """Where the service's certificate, its key and the authorities of its clients are. An empty `client_ca_file`: clients show nothing."""

    cert_file: str
    key_file: str
    client_ca_file: str
    client_cert_required: bool


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what this worker takes in before it says `overloaded` or `quota-exceeded` (0: no quota)."""

    pending_requests_max: int = 40_000
    pending_bytes_max: int = 64 << 20
    pending_ms_max: int = 3_000
    party_requests_per_s: int = 0


class IndexConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[index]`: where the workers' indexes are kept, each in a folder named by its worker, and with how much memory."""

    directory: str = "index"
    cache_bytes: int = 256 << 20
    write_buffer_bytes: int = 64 << 20


class SnapshotsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[snapshots]`: the folder or URL that keeps them (empty: none), how often one is made (0: never), and how many are kept (0: all)."""

    url: str = ""
    every_s: int = 0
    keep: int = 7


class TracingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tracing]`: where OpenTelemetry's spans are sent to (empty: there are none), and the share of submissions that have some."""

    endpoint: str = ""
    ratio: float = 0.01
    queue_spans_max: int = 8_192


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything `notary serve` needs."""

    name: str
    origin: str
    key_file: str = "notary-key.pem"
    key_history_file: str = "notary-keys.json"
    parties_file: str = "parties.json"
    log: LogConfig = LogConfig()
    worker: WorkerConfig = WorkerConfig()
    http: HttpConfig = HttpConfig()
    limits: LimitsConfig = LimitsConfig()
    index: IndexConfig = IndexConfig()
    snapshots: SnapshotsConfig = SnapshotsConfig()
    tracing: TracingConfig = TracingConfig()
    directory: str = ""
    """The folder of the file. It is no setting of its own."""
    file: str = ""
    """The file itself, for the commands that a worker starts."""
    clock_accepted: bool = False
    """Whether a person has said that this machine's clock is right. It is no setting: it holds for one start (`--accept-clock`)."""

    def path(self, relative: str) -> Path:
        """A path of the file, from where the file stands."""
        return Path(self.directory) / relative

    @property
    def index_directory(self) -> Path:
        """This worker's index."""
        return self.path(self.index.directory) / self.worker.name

    @property
    def index_settings(self) -> IndexSettings:
        """The settings that the index is opened with."""
        return IndexSettings(cache_bytes=self.index.cache_bytes, write_buffer_bytes=self.index.write_buffer_bytes)

    @property
    def joiner_limits(self) -> JoinerLimits:
        """The joiner's timeouts and bounds."""
        worker = self.worker
        return JoinerLimits(
            hole_timeout_ms=worker.hole_timeout_ms,
            worker_timeout_ms=worker.worker_timeout_ms,
            buffer_bytes_max=worker.buffer_bytes_max,
        )

    @property
    def driver_settings(self) -> DriverSettings:
        """The driver's."""
        worker = self.worker
        return DriverSettings(
            unreachable_s=worker.unreachable_ms / 1000,
            clock_behind_ms_max=worker.clock_behind_ms_max,
            clock_ahead_ms_max=worker.clock_ahead_ms_max,
            clock_accepted=self.clock_accepted,
        )

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

    @property
    def self_check_settings(self) -> SelfCheckSettings:
        """The intervals at which roots are compared and rows audited."""
        worker = self.worker
        return SelfCheckSettings(
            checkpoint_interval_ms=worker.checkpoint_interval_ms,
            worker_timeout_ms=worker.worker_timeout_ms,
            audit_s=worker.audit_interval_ms / 1000,
            scrub_s=worker.scrub_interval_ms / 1000,
        )

    @property
    def kafka_security(self) -> KafkaSecurity | None:
        """The security of connections to the brokers; None for plain text."""
        return kafka_security(self.log, Path(self.directory))


def kafka_security(log: LogConfig, directory: Path) -> KafkaSecurity | None:
    """TLS and SASL as `[log]` sets them, with its files looked for from `directory` on; None for plain text."""
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
            raise ConfigurationError(f"log.sasl_password_file {password_file} is no text: {problem}") from None
    # Without a file of its own the key stands in the certificate's.
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
    """The configuration of a file, the environment and flags (`{"http.listen": ...}`); `ConfigurationError` names file and key."""
    try:
        tree = tomllib.loads(file.read_bytes().decode())
    except OSError as problem:
        raise ConfigurationError(f"cannot read the configuration {file}: {why_unreadable(file, problem)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigurationError(f"{file} is not TOML: {problem}") from None
    for member in _NO_SETTINGS:
        if member in tree:
            raise ConfigurationError(f"{file}: `{member}` is not a setting at the top level")
    names = _setting_names()
    sources: dict[str, str] = {}  # setting -> where its value came from, if not from the file
    given = os.environ if environment is None else environment
    for variable, text in given.items():
        if variable in names:
            section, key = names[variable]
            _put(tree, section, key, text)
            sources[f"{section}.{key}".lstrip(".")] = f"the environment variable {variable}"
        elif variable.startswith("NOTARY_") and variable not in _ENVIRONMENT_OF_OTHERS and not _is_of_a_service(variable, given):
            nearest = difflib.get_close_matches(variable, names, 1, 0.0)[0]
            raise ConfigurationError(
                f"the environment variable {variable} names no setting; the nearest that does is {nearest}. See docs/configuration.md"
            )
    for dotted, value in (flags or {}).items():
        section, _, key = dotted.rpartition(".")
        _put(tree, section, key, value)
        sources[dotted] = f"the flag for {dotted}"
    worker = tree.setdefault("worker", {})
    if isinstance(worker, dict) and not worker.get("name"):
        worker["name"] = socket.gethostname()
    tree["directory"], tree["file"] = str(file.absolute().parent), str(file.absolute())
    try:
        # Not strict: a number of the environment is text.
        config = msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as problem:
        what, _, place = str(problem).replace("`", "").partition(" - at $")
        setting = place.lstrip(".")
        if what.startswith(_UNKNOWN):
            what = _unknown(setting, what.removeprefix(_UNKNOWN))
        elif what.startswith(_NO_CHOICE):
            what += f": give one of {', '.join(_choices(setting))}"
        raise _wrong(file, sources, setting, what[:1].lower() + what[1:]) from None
    for setting, what in _wrong_values(config):
        raise _wrong(file, sources, setting, what)
    return config


def _unknown(section: str, key: str) -> str:
    known = [name for of, name in _setting_names().values() if of == section]
    if not section:
        known += {of for of, _ in _setting_names().values() if of}
    nearest = difflib.get_close_matches(key, known, 1, 0.0)
    return (
        f"{key} names no setting; the nearest that does is {nearest[0]}. See docs/configuration.md"
        if nearest
        else f"{key} names no setting"
    )


def _choices(setting: str) -> tuple[str, ...]:
    """The values that a setting of a few words may have."""
    section, _, key = setting.partition(".")
    (of,) = [field.type for field in msgspec.structs.fields(Config) if field.name == section]
    (choices,) = [get_args(field.type) for field in msgspec.structs.fields(of) if field.name == key]
    return choices


def _wrong(file: Path, sources: Mapping[str, str], setting: str, what: str) -> ConfigurationError:
    source = f" (from {sources[setting]})" if setting in sources else ""
    return ConfigurationError(f"{file}: {setting or 'top level'}{source}: {what}")


def _wrong_values(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, what is wrong with it) for what the types do not say."""
    try:
        name_bytes = len(config.name.encode())
    except UnicodeEncodeError:
        yield "name", "is not UTF-8"
        return
    if not 0 < name_bytes <= NAME_BYTES_MAX:
        yield "name", f"has 1 to {NAME_BYTES_MAX} bytes of UTF-8, this one has {name_bytes}"
    if (why := _wrong_origin(config.origin)) is not None:
        yield "origin", why
    if _WORKER_NAME(config.worker.name) is None:
        yield (
            "worker.name",
            f"{config.worker.name!r} should be 1 to 100 letters, digits, dots, dashes, underscores: it names the index's folder",
        )
    if config.log.kind == "kafka" and not config.log.bootstrap:
        yield "log.bootstrap", "names no broker (HOST:PORT,...), and log.kind is kafka"
    for section in ("log", "worker", "http", "limits", "index", "snapshots", "tracing"):
        settings = getattr(config, section)
        for field in msgspec.structs.fields(settings):
            value = getattr(settings, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if isinstance(value, int) and not least <= value <= _INTEGER_MAX:
                yield f"{section}.{field.name}", f"{value} should be {least} to {_INTEGER_MAX}"
    if config.http.intake_processes > _INTAKE_PROCESSES_MAX:
        yield "http.intake_processes", f"{config.http.intake_processes} should be 0 to {_INTAKE_PROCESSES_MAX}, a few for each core at most"
    http = config.http
    for key, needs in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file"), ("tls_client_ca_file", "tls_cert_file")):
        if getattr(http, key) and not getattr(http, needs):
            yield f"http.{needs}", f"is empty, and http.{key} is set: give both, or neither for plain HTTP"
    if http.tls_client_cert == "optional" and not http.tls_client_ca_file:
        yield "http.tls_client_cert", "is optional, and http.tls_client_ca_file, by which such certificates are known, is empty: set it"
    if config.snapshots.every_s and not config.snapshots.url:
        yield "snapshots.url", "names no folder and no URL, and snapshots.every_s is set: say where snapshots are kept"
    if not 0 <= config.tracing.ratio <= 1:
        yield "tracing.ratio", f"{config.tracing.ratio} should be 0 to 1, the share of submissions that are traced"
    if config.tracing.endpoint and not config.tracing.endpoint.startswith(("http://", "https://")):
        yield "tracing.endpoint", f"{config.tracing.endpoint!r} should be a URL for OTLP over HTTP: e.g. http://127.0.0.1:4318/v1/traces"
    for key in ("listen", "health_listen"):
        text = getattr(config.http, key)
        if text or key == "listen":
            try:
                parse_listen(text)
            except ConfigurationError as problem:
                yield f"http.{key}", str(problem)


def check_origin(origin: str) -> None:
    """Raise `ConfigurationError` unless the origin can name the key of a C2SP signed note."""
    if (why := _wrong_origin(origin)) is not None:
        raise ConfigurationError(f"the origin {why}")


def _wrong_origin(origin: str) -> str | None:
    if origin == ENDORSEMENT_HEAD:
        return f"{origin!r} is how endorsements of keys begin, for which its checkpoints could be taken: choose another one"
    size = len(origin.encode(errors="surrogatepass"))
    if size > NAME_BYTES_MAX:
        return f"has 1 to {NAME_BYTES_MAX} bytes of UTF-8, this one has {size}"
    if origin and "+" not in origin and not any(character.isspace() or character < " " for character in origin):
        with contextlib.suppress(UnicodeEncodeError):
            origin.encode()
            return None
    return f"{origin!r} must not be empty, nor hold white space, control characters or `+`: e.g. notary.example/london"


def parse_listen(text: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT; port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or not host:
        raise ConfigurationError(f"expected HOST:PORT to listen on, got {text!r}: e.g. 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def _setting_names() -> dict[str, tuple[str, str]]:
    """Environment variable -> (section, key)."""
    names: dict[str, tuple[str, str]] = {}
    for field in msgspec.structs.fields(Config):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for inner in msgspec.structs.fields(field.type):
                names[f"NOTARY_{field.name}_{inner.name}".upper()] = (field.name, inner.name)
        elif field.name not in _NO_SETTINGS:
            names[f"NOTARY_{field.name}".upper()] = ("", field.name)
    return names


def _is_of_a_service(variable: str, environment: Collection[str]) -> bool:
    """Whether Kubernetes made the variable of a Service of the namespace whose name begins with `notary`.

    It always makes `<SERVICE>_SERVICE_HOST` with the others: without that, `NOTARY_HTTP_PORT` is somebody's mistake.
    """
    for host in environment:
        service = host.removesuffix("_SERVICE_HOST")
        is_its_own = service != host and (service + "_").startswith("NOTARY_") and variable.startswith(service + "_")
        if is_its_own and _OF_A_SERVICE(variable[len(service) + 1 :]):
            return True
    return False


def _put(tree: dict[str, Any], section: str, key: str, value: Any) -> None:
    inside = tree.setdefault(section, {}) if section else tree
    if isinstance(inside, dict):
        inside[key] = value
