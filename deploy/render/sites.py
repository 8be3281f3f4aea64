"""The sites file: the controllers, brokers and workers of each site, and their common settings.

An unknown key is an error, so that a misspelt one is never ignored. The file has the node ids, since they must not change when a site is
added or removed.
"""

import base64
import difflib
import re
import tomllib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ordering.ids import NAME_BYTES_MAX
from ordering.settings import PAYLOAD_PARTITIONS_DEFAULT, NotNegative

HEAP_MIB_MIN: Final = {"broker_heap_mib": 256, "controller_heap_mib": 128}
"""The smallest heaps, in MiB. The log cleaner of a broker alone takes 128 MiB, and with less the broker ends."""
NODE_ID_MAX: Final = 2**31 - 1
PORT_MIN: Final = 1024
"""The lowest port of a process without capabilities, as in the units."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}").fullmatch
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*").fullmatch
_FOLDER = re.compile(r"(/[A-Za-z0-9._-]+)+").fullmatch
_OPTION = re.compile(r"[A-Za-z0-9._:/=+,-]+").fullmatch
_ORIGIN = re.compile(r"[^\s+]{1,255}").fullmatch
_PREFIX = re.compile(r"(?!-)[A-Za-z0-9._-]{1,240}").fullmatch


class SitesError(Exception):
    """The sites file cannot be used. The message names the problem, the value and a remedy."""


class Certificate(NamedTuple):
    """A certificate that an installation needs. Its name is the principal's: `User:NAME`."""

    name: str
    hosts: tuple[str, ...] = ()
    server: bool = False
    crl_url: str = ""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A controller or a broker: its node id and its host."""

    id: int
    host: str


class SiteWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker: its name in the notary, and the host on which it serves."""

    name: str
    host: str


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site: a data centre, all of which may fail at once. Its name is the rack of its brokers."""

    name: str
    controllers: tuple[Node, ...] = ()
    brokers: tuple[Node, ...] = ()
    workers: tuple[SiteWorker, ...] = ()

    @property
    def hosts(self) -> list[str]:
        """Its distinct hosts."""
        nodes = (*self.controllers, *self.brokers)
        return list(dict.fromkeys([node.host for node in nodes] + [worker.host for worker in self.workers]))


class NotarySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[notary]`: the identity of the notary, and its topics."""

    name: str
    origin: str
    topic_prefix: str = "notary"
    payload_partitions: int = PAYLOAD_PARTITIONS_DEFAULT


class KafkaSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[kafka]`: the common settings of all controllers and brokers."""

    cluster_id: str = ""
    replication: int = 3
    broker_heap_mib: int = 4096
    controller_heap_mib: int = 1024
    java_options: tuple[str, ...] = ("-XX:+UseG1GC",)
    security: str = "TLS"
    check_revocation: bool = True


class Ports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[ports]`: the ports, the same on all hosts."""

    broker: int = 9092
    controller: int = 9093
    worker: int = 8080
    health: int = 8081
    scram: int = 0
    """The brokers' port for clients with a password and no certificate; 0: no such port."""


class Folders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[folders]`: the folders, the same on all hosts."""

    config: str = "/etc/notary"
    data: str = "/var/lib/notary"
    kafka: str = "/opt/kafka"
    notary: str = "/opt/notary"
    java: str = "/usr/bin/java"


class Clients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[clients]`: names of the certificates of clients other than workers."""

    readers: tuple[str, ...] = ("spark", "archive")
    """Clients that may read both topics."""
    operators: tuple[str, ...] = ("operator",)
    """Clients that may create both topics, read them and write to them."""


class StoreUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[archive]`: the place of all workers' log segments. Empty: none are kept."""

    url: str = ""

    @property
    def folder(self) -> str:
        """The folder that `url` names, perhaps as `file://…`; empty for another URL."""
        path = self.url.removeprefix("file://")
        return "" if "://" in path else path


class SnapshotsSection(StoreUrl, frozen=True, forbid_unknown_fields=True):
    """`[snapshots]`: the place of all workers' index snapshots, and the seconds between two. Empty: none are kept."""

    every_s: NotNegative = 86_400


class Sites(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The complete sites file."""

    notary: NotarySection
    site: tuple[Site, ...]
    kafka: KafkaSection = KafkaSection()
    ports: Ports = Ports()
    folders: Folders = Folders()
    clients: Clients = Clients()
    snapshots: SnapshotsSection = SnapshotsSection()
    archive: StoreUrl = StoreUrl()

    @property
    def controllers(self) -> list[Node]:
        """The controllers of all sites."""
        return [node for site in self.site for node in site.controllers]

    @property
    def brokers(self) -> list[Node]:
        """The brokers of all sites."""
        return [node for site in self.site for node in site.brokers]

    @property
    def workers(self) -> list[SiteWorker]:
        """The workers of all sites."""
        return [worker for site in self.site for worker in site.workers]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers: `host:port,host:port`."""
        return ",".join(f"{node.host}:{self.ports.broker}" for node in self.brokers)

    @property
    def topics(self) -> tuple[str, str]:
        """The names of the ordering topic and of the payload topic."""
        return f"{self.notary.topic_prefix}.ordering", f"{self.notary.topic_prefix}.payload"

    @property
    def tls(self) -> bool:
        """True if connections to brokers and controllers use TLS, and ACLs are checked."""
        return self.kafka.security == "TLS"

    @property
    def super_users(self) -> list[str]:
        """The principals of brokers and controllers; no client is a super user.

        Operations that no client may do need a broker's certificate, on that broker's host.
        """
        return [controller_name(node) for node in self.controllers] + [broker_name(node) for node in self.brokers]

    @property
    def certificates(self) -> list[Certificate]:
        """All certificates that this installation needs."""
        url = f"file://{self.folders.config}/tls/crl.pem"
        servers = [(controller_name(node), node.host) for node in self.controllers]
        servers += [(broker_name(node), node.host) for node in self.brokers]
        servers += [(worker_principal(worker), worker.host) for worker in self.workers]
        clients = [*self.clients.readers, *self.clients.operators]
        return [Certificate(name, (host,), server=True, crl_url=url) for name, host in servers] + [
            Certificate(name, crl_url=url) for name in clients
        ]


_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "": Sites, "notary": NotarySection, "kafka": KafkaSection, "ports": Ports, "folders": Folders, "clients": Clients,
    "snapshots": SnapshotsSection, "archive": StoreUrl,
    "site": Site, "controllers": Node, "brokers": Node, "workers": SiteWorker,
}  # fmt: skip
_UNKNOWN: Final = "Object contains unknown field "


def controller_name(node: Node) -> str:
    """The name of a controller's certificate and data folder."""
    return f"controller-{node.id}"


def broker_name(node: Node) -> str:
    """The name of a broker's certificate and data folder."""
    return f"broker-{node.id}"


def worker_principal(worker: SiteWorker) -> str:
    """The name of a worker's certificate."""
    return f"worker-{worker.name}"


def read_sites(file: Path) -> Sites:
    """Read and check a sites file. Raises `SitesError`."""
    try:
        tree = tomllib.loads(file.read_bytes().decode())
    except OSError as problem:
        raise SitesError(f"cannot read {file}: {problem.strerror}. deploy/sites/sites.toml is an example") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SitesError(f"{file} is not TOML: {problem}") from None
    try:
        sites = msgspec.convert(tree, Sites)
    except msgspec.ValidationError as problem:
        what, _, place = str(problem).replace("`", "").partition(" - at $")
        if what.startswith(_UNKNOWN):
            what = _unknown(place, what.removeprefix(_UNKNOWN))
        raise SitesError(f"{file}: {place.lstrip('.') or 'top level'}: {what[:1].lower() + what[1:]}") from None
    for setting, what in _wrong(sites):
        raise SitesError(f"{file}: {setting}: {what}")
    return sites


def _unknown(place: str, key: str) -> str:
    section = re.sub(r"\[[^]]*\]", "", place).rpartition(".")[2]
    known = msgspec.structs.fields(_SECTIONS[section])
    nearest = difflib.get_close_matches(key, [field.name for field in known], 1, 0.0)[0]
    return f"{key} names no setting; the nearest setting is {nearest}. deploy/sites/README.md has all of them"


def _wrong(sites: Sites) -> Iterator[tuple[str, str]]:
    """Yields (setting, problem and remedy) for values that the types allow, but that cannot be used."""
    yield from _wrong_words(sites)
    yield from _wrong_numbers(sites)
    yield from _wrong_names(sites)
    yield from _wrong_quorum(sites)
    if sites.kafka.security not in ("TLS", "PLAINTEXT"):
        yield "kafka.security", f"{sites.kafka.security!r}: choose TLS, or PLAINTEXT for one machine"
    if not sites.clients.operators:
        yield "clients.operators", 'without an operator nobody can make the notary: name one, as in ["operator"]'
    if not sites.tls:
        if sites.ports.scram:
            yield "ports.scram", "passwords need TLS: set kafka.security to TLS, or leave this out"
        for node in [*sites.controllers, *sites.brokers]:
            if node.host not in ("127.0.0.1", "localhost"):
                yield "kafka.security", f"PLAINTEXT is for one machine, and {node.host} is not its loopback: choose TLS"


def _wrong_words(sites: Sites) -> Iterator[tuple[str, str]]:
    if not _is_cluster_id(sites.kafka.cluster_id):
        new = encode_uuid(uuid.uuid4())
        yield "kafka.cluster_id", f"{sites.kafka.cluster_id!r} is no cluster id; for a new cluster write {new!r}, and keep it for ever"
    for key, text in (("name", sites.notary.name), ("origin", sites.notary.origin)):
        if not text.strip() or not text.isprintable():
            yield f"notary.{key}", f"{text!r} should be a text of one line; it is the one that `notary init` gets"
        if len(text.encode()) > NAME_BYTES_MAX:
            yield f"notary.{key}", f"{text!r} should have at most {NAME_BYTES_MAX} bytes of UTF-8, as `notary init` wants it"
    if _ORIGIN(sites.notary.origin) is None or sites.notary.origin == "notary/key/v1":
        yield (
            "notary.origin",
            f"{sites.notary.origin!r} should be 1 to 255 characters without white space and '+', such as notary.example/london",
        )
    if _PREFIX(sites.notary.topic_prefix) is None:
        yield "notary.topic_prefix", f"{sites.notary.topic_prefix!r} should be letters, digits, dots, dashes, underscores, no dash first"
    for field in msgspec.structs.fields(Folders):
        if _FOLDER(text := getattr(sites.folders, field.name)) is None or ".." in text.split("/"):
            yield f"folders.{field.name}", f"{text!r} should be an absolute path of letters, digits, dots, dashes, underscores"
    for key, place in (("snapshots", sites.snapshots), ("archive", sites.archive)):
        if (place.folder and _FOLDER(place.folder) is None) or not place.url.isprintable():
            yield f"{key}.url", f"{place.url!r} should be a URL, such as s3://bucket/notary, or the absolute path of a folder"
    for option in sites.kafka.java_options:
        if _OPTION(option) is None:
            yield "kafka.java_options", f"{option!r} should have no white space, quotes, % or $: one option a text"


def _wrong_numbers(sites: Sites) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(Ports):
        port = getattr(sites.ports, field.name)
        if not PORT_MIN <= port <= 65535 and (port or field.name != "scram"):
            yield (
                f"ports.{field.name}",
                f"{port} should be {PORT_MIN} to 65535: the units may not listen at lower ones, so forward such a port to a higher one",
            )
    if (port := _repeated(msgspec.structs.astuple(sites.ports))) is not None:
        yield "ports", f"{port} is given twice: services on one host would collide; choose different ports"
    for key, least in HEAP_MIB_MIN.items():
        if (mib := getattr(sites.kafka, key)) < least:
            yield f"kafka.{key}", f"{mib} is too small: choose {least} or more"
    if not 1 <= sites.notary.payload_partitions <= 1000:
        yield "notary.payload_partitions", f"{sites.notary.payload_partitions} should be 1 to 1000"
    if not 1 <= sites.kafka.replication <= len(sites.brokers):
        yield "kafka.replication", f"{sites.kafka.replication} copies cannot be kept by {len(sites.brokers)} brokers: choose 1 to as many"
    for node in [*sites.controllers, *sites.brokers]:
        if not 0 <= node.id <= NODE_ID_MAX:
            yield "site", f"node id {node.id} should be 0 to {NODE_ID_MAX}"


def _wrong_names(sites: Sites) -> Iterator[tuple[str, str]]:
    clients = [*sites.clients.readers, *sites.clients.operators]
    for name in [*(site.name for site in sites.site), *(worker.name for worker in sites.workers), *clients]:
        if _NAME(name) is None:
            yield "names", f"{name!r} should be 1 to 50 letters, digits, dots, dashes, underscores, a letter or digit first"
    nodes = [*sites.controllers, *sites.brokers]
    if "operator" in [site.name for site in sites.site]:
        yield "site", "'operator' is the folder of the operator's own files: give the site another name"
    for host in [node.host for node in nodes] + [worker.host for worker in sites.workers]:
        if _HOST(host) is None:
            yield "hosts", f"{host!r} is neither a DNS name nor an IPv4 address"
    for what, values in (
        ("site name", [site.name for site in sites.site]),
        ("node id", [node.id for node in nodes]),
        ("worker name", [worker.name for worker in sites.workers]),
        ("certificate", [certificate.name for certificate in sites.certificates]),
    ):
        if (twice := _repeated(values)) is not None:
            yield "site", f"the {what} {twice!r} is given twice: each needs its own"
    for what, hosts in (
        ("controllers", [node.host for node in sites.controllers]),
        ("brokers", [node.host for node in sites.brokers]),
        ("workers", [worker.host for worker in sites.workers]),
    ):
        if (shared := _repeated(hosts)) is not None:
            yield "site", f"{shared} has two {what}: they would share their port and fail together, name another host"
    homes: dict[str, str] = {}
    for site in sites.site:
        for host in site.hosts:
            if homes.setdefault(host, site.name) != site.name:
                yield "site", f"{host} stands in {homes[host]} and in {site.name}: a host is in one site"


def _wrong_quorum(sites: Sites) -> Iterator[tuple[str, str]]:
    count = len(sites.controllers)
    if count not in (1, 3, 5):
        yield "site", f"{count} controllers: choose 3 or 5 (1 for a single machine), so that a majority is left when one is away"
    if len(sites.site) == 1:
        return
    if sites.kafka.replication < 3:
        yield "kafka.replication", f"{sites.kafka.replication} copies: without one site nothing would be acknowledged, choose 3"
    if (with_brokers := sum(bool(site.brokers) for site in sites.site)) < 3:
        yield "site", f"{with_brokers} sites have brokers: one of them would keep two of three copies, choose 3 sites or a single one"
    for site in sites.site:
        if 2 * len(site.controllers) > count:
            share = f"{len(site.controllers)} of {count} controllers"
            yield "site", f"{site.name} has {share}, and its loss would stop the cluster: spread the controllers"


def _repeated(values: Iterable[object]) -> object | None:
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _is_cluster_id(text: str) -> bool:
    """Returns True for a cluster id that Kafka accepts: a UUID in 22 characters, the first no dash, since tools would read a flag."""
    try:
        return len(text) == 22 and text[0] != "-" and len(base64.urlsafe_b64decode(text + "==")) == 16
    except ValueError:
        return False


def encode_uuid(made: uuid.UUID) -> str:
    """Encodes a UUID in Kafka's form, 22 characters. The first is never a dash, which the storage tool would take for a flag."""
    text = base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
    return "A" + text[1:] if text[0] == "-" else text
