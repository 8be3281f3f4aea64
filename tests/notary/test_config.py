"""Configuration from file, environment and flags; errors name the file and the key."""

import re
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from deploy.local.jars import ALL
from notary.config import SETTINGS, Config, kafka_security, load
from notary.http.settings import parse_listen
from notary.tls import TlsFiles
from ordering.errors import ConfigurationError
from ordering.settings import LogSettings
from tests.notary.certificates import DAY, Authority
from tests.sources import ROOT

LEAST = 'name = "O=N"\norigin = "notary.example/x"\n'


def loaded(tmp_path: Path, text: str = "", flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Returns the configuration of a file with name, origin and `text`."""
    file = tmp_path / "notary.toml"
    file.write_text(LEAST + text, encoding="utf-8")
    return load(file, flags, {} if environment is None else environment)


def test_a_name_and_an_origin_are_enough(tmp_path: Path) -> None:
    """Everything but name and origin has a default; the worker's name is the host's."""
    config = loaded(tmp_path)
    assert (config.name, config.origin, config.log.kind) == ("O=N", "notary.example/x", "embedded")
    assert config.worker.name
    assert config.kafka_security is None


def test_the_later_source_wins(tmp_path: Path) -> None:
    """Flags override the environment, which overrides the file, which overrides the defaults."""
    text = '[http]\nlisten = "1.1.1.1:1"\nhead_ms_max = 1\nbody_ms_max = 1\n'
    environment = {"NOTARY_HTTP_LISTEN": "2.2.2.2:2", "NOTARY_HTTP_HEAD_MS_MAX": "2"}
    http = loaded(tmp_path, text, {"http.listen": "3.3.3.3:3"}, environment).http
    assert (http.listen, http.head_ms_max, http.body_ms_max, http.connections_max) == ("3.3.3.3:3", 2, 1, 2_000)


def test_every_setting_has_its_variable(tmp_path: Path) -> None:
    """`[section] key` is `NOTARY_SECTION_KEY`; a top-level key has no section; numbers are parsed from text."""
    environment = {"NOTARY_NAME": "O=E", "NOTARY_LIMITS_PARTY_REQUESTS_PER_S": "7", "NOTARY_INDEX_DIRECTORY": "/i", "HOME": "/h"}
    config = loaded(tmp_path, "", None, environment)
    assert (config.name, config.quota.party_requests_per_s, config.index.directory) == ("O=E", 7, "/i")


def test_variables_of_others_are_ignored(tmp_path: Path) -> None:
    """`NOTARY_KAFKA_HOME` and the like belong to `deploy.local`, `NOTARY_IMAGE` to a compose file."""
    loaded(tmp_path, "", None, {jars.variable: "/k" for jars in ALL} | {"NOTARY_IMAGE": "notary:1"})


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths start at the file's folder, for any working directory and any name of the file; absolute paths stay."""
    (tmp_path / "conf").mkdir()
    loaded(tmp_path / "conf", 'key_file = "keys/k.pem"\nparties_file = "/etc/parties.json"\n[worker]\nname = "w"\n')
    monkeypatch.chdir(tmp_path)
    config = load(Path("conf/notary.toml"), None, {})
    monkeypatch.chdir("/")
    assert config.path(config.key_file) == tmp_path / "conf" / "keys" / "k.pem"
    assert config.path(config.parties_file) == Path("/etc/parties.json")
    assert config.index_directory == tmp_path / "conf" / "index" / "w"


WRONG: dict[str, tuple[str, str]] = {
    "unknown-at-top": ("colour = 1", "colour"),
    "unknown-section": ("[colours]\na = 1", "colours"),
    "unknown-in-section": ('[http]\nlisen = "127.0.0.1:1"', "lisen"),
    "inner-name": ('directory = "/"', "directory"),
    "text-for-integer": ('[http]\nhead_ms_max = "soon"', "http.head_ms_max"),
    "fraction": ("[http]\nhead_ms_max = 1.5", "http.head_ms_max"),
    "boolean": ("[http]\nhead_ms_max = true", "http.head_ms_max"),
    "negative": ("[limits]\npending_requests_max = -1", "limits.pending_requests_max"),
    "negative-processes": ("[http]\nacceptor_processes = -1", "http.acceptor_processes"),
    "huge": ("[index]\ncache_bytes = 1000000000000000000000", "index.cache_bytes"),
    "integer-for-text": ("[http]\nlisten = 8080", "http.listen"),
    "no-port": ('[http]\nlisten = "127.0.0.1"', "http.listen"),
    "no-listen": ('[http]\nlisten = ""', "http.listen"),
    "health-port": ('[http]\nhealth_listen = "x:y"', "http.health_listen"),
    "log-kind": ('[log]\nkind = "tape"', "log.kind"),
    "no-brokers": ('[log]\nkind = "kafka"', "log.bootstrap"),
    "security": ('[log]\nsecurity_protocol = "NONE"', "log.security_protocol"),
    "authorities-in-plain-text": ('[log]\nca_file = "ca.pem"', "log.ca_file: is set, and log.security_protocol is PLAINTEXT"),
    "certificate-with-sasl-alone": ('[log]\nsecurity_protocol = "SASL_PLAINTEXT"\ncert_file = "c.pem"', "log.cert_file: is set"),
    "user-without-sasl": ('[log]\nsecurity_protocol = "SSL"\nsasl_username = "u"', "log.sasl_username: is set"),
    "sasl-without-user": ('[log]\nsecurity_protocol = "SASL_SSL"\nsasl_password_file = "p"', "log.sasl_username: is empty"),
    "sasl-without-password": ('[log]\nsecurity_protocol = "SASL_SSL"\nsasl_username = "u"', "log.sasl_password_file: is empty"),
    "brokers-key-without-certificate": ('[log]\nsecurity_protocol = "SSL"\nkey_file = "k.pem"', "log.cert_file: is empty"),
    "worker-path": ('[worker]\nname = "../other"', "worker.name"),
    "worker-dot": ('[worker]\nname = "."', "worker.name"),
    "worker-long": (f'[worker]\nname = "{"w" * 101}"', "worker.name"),
    "section-is-no-table": ("http = 1", "http"),
    "clock-accepted": ("clock_accepted = true", "clock_accepted"),
    "clock-accepted-in-its-section": ("[worker]\nclock_accepted = true", "worker: clock_accepted names no setting"),
    "fixed": ("[worker]\nqueue_ids_max = 1", "worker: queue_ids_max names no setting"),
    "dotted": ('"worker.name" = "w"', "top level: worker.name names no setting"),
    "member": ("[joiner]\nhole_timeout_ms = 1", "top level: joiner names no setting"),
    "no-clock-limit": ("[worker]\nclock_behind_ms_max = 0", "worker.clock_behind_ms_max"),
    "certificate-without-key": ('[http]\ntls_cert_file = "c.pem"', "http.tls_key_file"),
    "key-without-certificate": ('[http]\ntls_key_file = "k.pem"', "http.tls_cert_file"),
    "authorities-without-certificate": ('[http]\ntls_client_ca_file = "a.pem"', "http.tls_cert_file"),
    "optional-without-authorities": ('[http]\ntls_client_cert = "optional"', "http.tls_client_cert"),
    "tls-client-cert": ('[http]\ntls_client_cert = "never"', "http.tls_client_cert"),
    "log-level": ('[worker]\nlog_level = "loud"', "worker.log_level"),
    "misspelt": ('[http]\nListen = "127.0.0.1:1"', "http: Listen names no setting; the nearest setting is listen. See"),
    "misspelt-too": ('[worker]\ndata_center = "x"', "worker: data_center names no setting; the nearest setting is data_centre. See"),
    "misspelt-section": ("[indx]\na = 1", "top level: indx names no setting; the nearest setting is index. See"),
    "nul": ('key_file = "a\\u0000b"', "key_file has a NUL character"),
    "nul-in-a-url": ('[snapshots]\nurl = "a\\u0000b"', "snapshots.url has a NUL character"),
    "trace-endpoint": ('[tracing]\nendpoint = "collector:4318"', "tracing.endpoint"),
    "negative-ratio": ("[tracing]\nratio = -1", "tracing.ratio"),
    "partitions-are-in-the-log": ("[log]\npayload_partitions = 16", "payload_partitions"),
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nhead_ms_max = 0", "http.head_ms_max: 0 should be 1 to 1099511627776"),
        ("[limits]\nparty_requests_per_s = -1", "limits.party_requests_per_s: -1 should be 0 to 1099511627776"),
        ("[worker]\nhole_timeout_ms = 1099511627777", "worker.hole_timeout_ms: 1099511627777 should be 1 to 1099511627776"),
        ("[http]\nacceptor_processes = 65", "http.acceptor_processes: 65 should be 0 to 64, a few for each core at most"),
        ("[tracing]\nratio = 1.5", "tracing.ratio: 1.5 should be 0 to 1, the share of submissions that are traced"),
        ("[tracing]\nratio = nan", "tracing.ratio: nan should be 0 to 1, the share of submissions that are traced"),
    ],
)
def test_a_number_out_of_range(tmp_path: Path, text: str, said: str) -> None:
    """The error for a number out of range names the setting, the value and the range."""
    with pytest.raises(ConfigurationError) as wrong:
        loaded(tmp_path, text)
    assert str(wrong.value) == f"{tmp_path / 'notary.toml'}: {said}"


def test_the_error_for_an_invalid_choice_lists_the_choices(tmp_path: Path) -> None:
    """The error names the file or variable, the value, and what may stand there."""
    with pytest.raises(ConfigurationError, match=r"notary.toml: http.reads: invalid enum value 'all': give one of open, parties"):
        loaded(tmp_path, '[http]\nreads = "all"\n')
    with pytest.raises(ConfigurationError, match=r"NOTARY_HTTP_READS\): invalid enum value 'party': give one of open, parties"):
        loaded(tmp_path, "", None, {"NOTARY_HTTP_READS": "party"})


@pytest.mark.parametrize(("text", "key"), WRONG.values(), ids=WRONG)
def test_an_error_names_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    """An unknown setting, or a bad value, raises an error that names the file and the key, and the nearest setting."""
    with pytest.raises(ConfigurationError) as wrong:
        loaded(tmp_path, text)
    assert str(tmp_path / "notary.toml") in str(wrong.value)
    assert key in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [('origin = "x"', "name"), ('name = "O=N"', "origin"), ('name = ""\norigin = "x"', "name"), ('name = "O=N"\norigin = "a b"', "origin"),
     (f'name = "{"é" * 128}"\norigin = "x"', "name"), ('name = 1\norigin = "x"', "name")],
)  # fmt: skip
def test_name_and_origin_are_checked(tmp_path: Path, text: str, key: str) -> None:
    """Name and origin are required, and follow the contract."""
    (tmp_path / "n.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=key) as wrong:
        load(tmp_path / "n.toml", None, {})
    assert str(tmp_path / "n.toml") in str(wrong.value)


def test_an_error_of_the_environment_names_the_variable(tmp_path: Path) -> None:
    """An error in a variable names the variable, not the file."""
    with pytest.raises(ConfigurationError, match=r"http\.head_ms_max \(from the environment variable NOTARY_HTTP_HEAD_MS_MAX\)"):
        loaded(tmp_path, "", None, {"NOTARY_HTTP_HEAD_MS_MAX": "soon"})


def of_a_service(service: str) -> dict[str, str]:
    """The variables that Kubernetes makes for a Service with two ports, one of them UDP."""
    name = service.upper().replace("-", "_")
    made = {"SERVICE_HOST": "10.0.0.7", "SERVICE_PORT": "8443", "SERVICE_PORT_HTTPS": "8443", "SERVICE_PORT_AS_SEEN": "53"}
    made["PORT"] = "tcp://10.0.0.7:8443"
    for port, protocol in ((8443, "tcp"), (53, "udp")):
        link = f"PORT_{port}_{protocol.upper()}"
        made |= {link: f"{protocol}://10.0.0.7:{port}", f"{link}_PROTO": protocol, f"{link}_PORT": str(port), f"{link}_ADDR": "10.0.0.7"}
    return {f"{name}_{variable}": value for variable, value in made.items()}


@pytest.mark.parametrize("service", ["notary", "notary-http", "notary-w-1", "notary-service-host", "notary-port-80-tcp", "notary2"])
def test_what_kubernetes_makes_of_a_service_is_passed_over(tmp_path: Path, service: str) -> None:
    """The variables of any Service in a pod's namespace are ignored, and settings beside them still count."""
    config = loaded(tmp_path, "", None, of_a_service(service) | {"NOTARY_HTTP_HEAD_MS_MAX": "7"})
    assert config.http.head_ms_max == 7


NO_SETTINGS = """
NOTARY_CLOCK_ACCEPTED NOTARY_LOG_PAYLOAD_PARTITIONS NOTARY_HTTP_LISEN NOTARY_LISTEN NOTARY_ NOTARY_DIRECTORY NOTARY_HTTP NOTARY_http_listen
NOTARY_HTTP_PORT NOTARY_PORT_8443 NOTARY_PORT_X_TCP NOTARY_PORT_8443_TCP_NAME NOTARY_SERVICE NOTARY_SERVICE_PORTS
"""


@pytest.mark.parametrize("variable", NO_SETTINGS.split())
def test_a_variable_that_is_no_setting_is_an_error(tmp_path: Path, variable: str) -> None:
    """A misspelt variable, or one that only resembles a Service's, raises an error, and is not ignored."""
    with pytest.raises(ConfigurationError, match=variable):
        loaded(tmp_path, "", None, of_a_service("notary") | {variable: "8080"})


def test_no_setting_has_a_name_that_a_service_could_make() -> None:
    """Else Kubernetes would set it in each pod of a namespace with such a Service."""
    made = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT$|_PORT_[0-9]")
    assert [setting.variable for setting in SETTINGS.values() if made.search(setting.variable)] == []


def test_the_error_for_an_unknown_variable_names_the_nearest_setting(tmp_path: Path) -> None:
    """The error for an unknown variable suggests the nearest setting."""
    for variable, nearest in (("NOTARY_HTTP_LISEN", "NOTARY_HTTP_LISTEN"), ("NOTARY_LOGLEVEL", "NOTARY_WORKER_LOG_LEVEL")):
        with pytest.raises(ConfigurationError, match=rf"{variable} names no setting; the nearest setting is {nearest}\."):
            loaded(tmp_path, "", None, {variable: "x"})


def test_a_flag_that_cannot_be_is_named(tmp_path: Path) -> None:
    """The error for a bad flag names the flag."""
    with pytest.raises(ConfigurationError, match=r"worker\.name \(from the flag --name\): 'a/b' should be"):
        loaded(tmp_path, "", {"worker.name": "a/b"})
    with pytest.raises(ConfigurationError, match=r"worker\.log_level \(from the flag --log-level\): is empty"):
        loaded(tmp_path, "", {"worker.log_level": ""})


@pytest.mark.parametrize("text", ['"5"', "5.0", "1e3", "true"])
def test_a_number_in_the_file_is_an_integer(tmp_path: Path, text: str) -> None:
    """A text, a fraction or a truth value is no number of milliseconds; the error has the value."""
    value = re.escape(repr(tomllib.loads(f"a = {text}")["a"]))
    with pytest.raises(ConfigurationError, match=rf"worker\.hole_timeout_ms: (?i:{value}): expected"):
        loaded(tmp_path, f"[worker]\nhole_timeout_ms = {text}")


@pytest.mark.parametrize("text", ["", "1e5", "5.0", "five", "0x10", "1_000", " 5", "\u0665", "9" * 5_000])
def test_a_number_in_a_variable_is_an_integer(tmp_path: Path, text: str) -> None:
    """A variable of another form is refused, with its name and its value."""
    with pytest.raises(ConfigurationError, match=r"\(from the environment variable NOTARY_WORKER_HOLE_TIMEOUT_MS\): .*: expected"):
        loaded(tmp_path, "", None, {"NOTARY_WORKER_HOLE_TIMEOUT_MS": text})
    assert loaded(tmp_path, "", None, {"NOTARY_WORKER_HOLE_TIMEOUT_MS": "5000"}).joiner.hole_timeout_ms == 5_000
    assert loaded(tmp_path, "", None, {"NOTARY_TRACING_RATIO": "1"}).tracing.ratio == 1.0


@pytest.mark.parametrize(
    "content",
    [b"name = ", b"\xff", b"[[[", b'name = "a"\nname = "b"', b"name = " + b"[" * 50_000, b"name = " + b"1" * 5_000],
    ids=["empty", "no UTF-8", "cut", "twice", "nested too deep", "a long number"],
)
def test_what_is_not_toml_is_an_error(tmp_path: Path, content: bytes) -> None:
    """A file that is not TOML raises an error with the file's name and the parser's message."""
    (tmp_path / "n.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"n\.toml is not TOML"):
        load(tmp_path / "n.toml", None, {})


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The error for a missing file says how to make one."""
    with pytest.raises(ConfigurationError, match="notary init"):
        load(tmp_path / "n.toml", None, {})


def test_a_missing_password_file_is_an_error(tmp_path: Path) -> None:
    """A missing password file is reported as an error of its setting, when the password is needed."""
    config = loaded(tmp_path, '[log]\nsecurity_protocol = "SASL_SSL"\nsasl_username = "u"\nsasl_password_file = "secret"')
    with pytest.raises(ConfigurationError, match="sasl_password_file"):
        _ = config.kafka_security
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text("s3cret\n")
    assert config.kafka_security is not None
    assert config.kafka_security.sasl_password == "s3cret"


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_file_for_tls_is_never_ignored(tmp_path: Path, protocol: Literal["PLAINTEXT", "SASL_PLAINTEXT"]) -> None:
    """`--log-settings` of a command is no configuration, and with a certificate it does not connect in plain text either."""
    with pytest.raises(ConfigurationError, match=rf"^log\.cert_file is set, and log\.security_protocol is {protocol}"):
        kafka_security(LogSettings(security_protocol=protocol, cert_file="c.pem"), tmp_path)


@pytest.mark.parametrize(("days", "first"), [(30, 30), (500, 365)])
def test_the_first_end_of_the_certificates_for_the_brokers(tmp_path: Path, days: int, first: int) -> None:
    """The authority's certificate counts too, as a worker keeps it in memory: once it has expired, no connection can be opened."""
    authority = Authority()
    authority.put(tmp_path / "ca.pem")
    authority.client(until=days * DAY).put(tmp_path, "client")
    plain = loaded(tmp_path)
    assert plain.log_certificates_end_s is None
    config = loaded(
        tmp_path, '[log]\nsecurity_protocol = "SSL"\nca_file = "ca.pem"\ncert_file = "client.pem"\nkey_file = "client-key.pem"\n'
    )
    assert config.log_certificates_end_s == pytest.approx(time.time() + first * DAY.total_seconds(), abs=60)


def test_an_empty_variable_turns_snapshots_off(tmp_path: Path) -> None:
    """The runbook starts a worker with an empty NOTARY_SNAPSHOTS_URL, whatever the file has in `[snapshots]`."""
    (section,) = re.findall(r"```toml\n(\[snapshots\].*?)```", (ROOT / "docs" / "snapshots.md").read_text(), re.DOTALL)
    assert "`NOTARY_SNAPSHOTS_URL= notary serve" in (ROOT / "docs" / "runbook.md").read_text()
    assert loaded(tmp_path, section).snapshots.every_s == 86_400
    file = tmp_path / "notary.toml"
    for more in ({}, {"NOTARY_SNAPSHOTS_EVERY_S": "60"}):
        snapshots = load(file, {}, {"NOTARY_SNAPSHOTS_URL": ""} | more).snapshots
        assert (snapshots.url, snapshots.every_s) == ("", 0)


@pytest.mark.parametrize("text", ["[snapshots]\nevery_s = 60", '[snapshots]\nurl = ""\nevery_s = 60'])
def test_a_schedule_without_a_place_is_a_mistake(tmp_path: Path, text: str) -> None:
    """A file that has `every_s` and no URL is rejected, unless a variable or flag gives the URL."""
    with pytest.raises(ConfigurationError, match=r"snapshots\.url: is empty, and snapshots\.every_s is set"):
        loaded(tmp_path, text)
    assert load(tmp_path / "notary.toml", {}, {"NOTARY_SNAPSHOTS_URL": "kept"}).snapshots.every_s == 60


def test_the_files_of_tls(tmp_path: Path) -> None:
    """Without a certificate there are no TLS files; otherwise their paths start at the configuration's folder."""
    assert loaded(tmp_path).tls_files is None
    files = loaded(tmp_path, '[http]\ntls_cert_file = "c.pem"\ntls_key_file = "/k.pem"\n').tls_files
    assert files == TlsFiles(str(tmp_path / "c.pem"), "/k.pem", "", True)
    optional = 'tls_cert_file = "/c.pem"\ntls_key_file = "/k.pem"\ntls_client_ca_file = "/a.pem"\ntls_client_cert = "optional"'
    assert loaded(tmp_path, f"[http]\n{optional}\n").tls_files == TlsFiles("/c.pem", "/k.pem", "/a.pem", False)


@pytest.mark.parametrize(
    ("text", "address"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))]
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    """An address is a host and a port; IPv6 is in brackets."""
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", ":", ":80", "80", "a:", "a:b", "a:-1", "a:65536", "a:8 0", "a:٣", "a:1.0"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """An address without host or port is rejected."""
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        parse_listen(text)


def test_the_log_of_another_configuration_has_its_files(tmp_path: Path) -> None:
    """`notary mirror` reads both configurations. The files of the target's log are where its own configuration has them."""
    log = LogSettings(topic_prefix="mirror", ca_file="ca.pem", cert_file="cert.pem", key_file="key.pem", sasl_password_file="password")
    made = Config("n", "o", directory=str(tmp_path / "own")).with_log_of(Config("n", "o", log=log, directory=str(tmp_path / "other")))
    assert made.log.topic_prefix == "mirror"
    for found, file in ((made.log.ca_file, "ca.pem"), (made.log.cert_file, "cert.pem"), (made.log.key_file, "key.pem")):
        assert made.path(found) == tmp_path / "other" / file
    assert made.path(made.log.sasl_password_file) == tmp_path / "other" / "password"
