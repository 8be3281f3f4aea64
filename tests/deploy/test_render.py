"""Tests deploy.render: the rules for a sites file, and the rendered files. `test_sites.py` and `test_one_box.py` run the rendered files."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from deploy.render import SitesError, read_sites, render
from deploy.render.__main__ import main
from deploy.render.kafka import acls
from notary.config import load
from tests.deploy.installed import read_unit

DEPLOY = Path(__file__).parents[2] / "deploy"
EXAMPLE = DEPLOY / "sites" / "sites.toml"
ONE_BOX = DEPLOY / "one-box" / "one-box.toml"


def changed(tmp_path: Path, before: str, after: str) -> Path:
    """Returns the example with one text changed."""
    text = EXAMPLE.read_text()
    assert before in text
    (tmp_path / "sites.toml").write_text(text.replace(before, after))
    return tmp_path / "sites.toml"


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.fixture
def files() -> dict[str, str]:
    return render(read_sites(EXAMPLE))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[notary]", "[notary", "is not TOML"),
        ("replication = 3", "replicas = 3", "kafka: replicas names no setting; the nearest setting is replication."),
        ("[kafka]", "[kafak]", "top level: kafak names no setting; the nearest setting is kafka."),
        ("id = 102", "ids = 102", "ids names no setting; the nearest setting is id."),
        ("replication = 3", "replication = '3'", "kafka.replication: expected int, got str"),
        ("replication = 3", "replication = 4", "kafka.replication: 4 copies cannot be kept by 3 brokers"),
        ("replication = 3", "replication = 2", "kafka.replication: 2 copies: without one site nothing would be acknowledged, choose 3"),
        ('cluster_id = "Qk1vZHJsS2VhX2VtcGxlMQ"', 'cluster_id = "prod"', "'prod' is no cluster id; for a new cluster write '"),
        ('cluster_id = "Qk1vZHJsS2VhX2VtcGxlMQ"', "", "kafka.cluster_id: '' is no cluster id"),
        ("id = 102", "id = 101", "the node id 101 is given twice"),
        ("id = 102", "id = 1", "the node id 1 is given twice"),
        ("id = 102", "id = -2", "node id -2 should be 0 to"),
        ('name = "paris-1"', 'name = "london-1"', "the worker name 'london-1' is given twice"),
        ('name = "paris"', 'name = "london"', "the site name 'london' is given twice"),
        ('name = "paris"', 'name = "../paris"', "'../paris' should be 1 to 50 letters"),
        ("notary.paris.example", "notary.paris.example:80", "'notary.paris.example:80' is neither a DNS name nor an IPv4 address"),
        ("notary.paris.example", "notary.london.example", "notary.london.example has two workers"),
        ("notary.paris.example", "kafka.london.example", "kafka.london.example stands in london and in paris: a host is in one site"),
        ('controllers = [{ id = 102, host = "kafka.paris.example" }]\n', "", "2 controllers: choose 3 or 5"),
        ('brokers = [{ id = 2, host = "kafka.paris.example" }]\n', "", "3 copies cannot be kept by 2 brokers"),
        ('origin = "notary.example/london"', 'origin = "a\\nb"', "notary.origin: 'a\\nb' should be a text of one line"),
        (
            'origin = "notary.example/london"',
            'origin = "notary london"',
            "notary.origin: 'notary london' should be 1 to 255 characters without",
        ),
        ("O=Notary Service", "é" * 128, "should have at most 255 bytes of UTF-8, as `notary init` wants it"),
        ("notary.example/london", "é" * 128, "should have at most 255 bytes of UTF-8, as `notary init` wants it"),
        (
            "[kafka]",
            'topic_prefix = "-n"\n[kafka]',
            "notary.topic_prefix: '-n' should be letters, digits, dots, dashes, underscores, no dash first",
        ),
        ('name = "paris"', 'name = "operator"', "'operator' is the folder of the operator's own files"),
        ("replication = 3", 'security = "tls"', "kafka.security: 'tls': choose TLS, or PLAINTEXT for one machine"),
        ("[kafka]", "[clients]\noperators = []\n[kafka]", "clients.operators: without an operator nobody can make the notary"),
        ("replication = 3", 'security = "PLAINTEXT"', "PLAINTEXT is for one machine, and kafka.london.example is not its loopback"),
        ("replication = 3", 'java_options = ["-Da b"]', "kafka.java_options: '-Da b' should have no white space"),
        ("replication = 3", "broker_heap_mib = 128", "kafka.broker_heap_mib: 128 is too small: choose 256 or more"),
        ("[kafka]", "[ports]\nbroker = 9093\n[kafka]", "ports: 9093 is given twice"),
        ("[kafka]", "[ports]\nscram = 9093\n[kafka]", "ports: 9093 is given twice"),
        ("replication = 3", 'security = "PLAINTEXT"\n[ports]\nscram = 9094', "ports.scram: passwords need TLS"),
        ("[kafka]", "[ports]\nbroker = 0\n[kafka]", "ports.broker: 0 should be 1024 to 65535"),
        ("[kafka]", "[ports]\nworker = 443\n[kafka]", "ports.worker: 443 should be 1024 to 65535: the units may not listen at lower ones"),
        ("[kafka]", "[snapshots]\nevery_s = -1\n[kafka]", "snapshots.every_s: expected int >= 0"),
        ("[kafka]", "[archive]\nurl = 'segments'\n[kafka]", "archive.url: 'segments' should be a URL, such as s3://bucket/notary, or the"),
        ("[kafka]", "[snapshots]\nurl = 's3:bucket'\n[kafka]", "snapshots.url: 's3:bucket' should be a URL"),
        ("[kafka]", "[folders]\nconfig = 'etc'\n[kafka]", "folders.config: 'etc' should be an absolute path"),
        ("[kafka]", "[folders]\nconfig = '/etc/../x'\n[kafka]", "folders.config: '/etc/../x' should be an absolute path"),
        ("[kafka]", "[clients]\nreaders = ['broker-1']\n[kafka]", "the certificate 'broker-1' is given twice"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, message: str
) -> None:
    """Nothing is rendered from a file with a mistake; the message names the setting, the value, and the remedy."""
    assert main([str(changed(tmp_path, before, after)), "--to", str(tmp_path / "to")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_two_controllers_in_one_site(tmp_path: Path) -> None:
    """A site without which the rest has no majority is rejected."""
    text = EXAMPLE.read_text().replace('controllers = [{ id = 102, host = "kafka.paris.example" }]\n', "")
    more = '[{ id = 101, host = "kafka.london.example" }, { id = 102, host = "kafka2.london.example" }]'
    (tmp_path / "sites.toml").write_text(text.replace('[{ id = 101, host = "kafka.london.example" }]', more))
    with pytest.raises(SitesError, match="london has 2 of 3 controllers, and its loss would stop the cluster"):
        read_sites(tmp_path / "sites.toml")


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message about a missing file names the example."""
    assert main([str(tmp_path / "sites.toml"), "--to", str(tmp_path)]) == 2
    assert "No such file or directory. deploy/sites/sites.toml is an example" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message about a folder that cannot be written names the folder and the flag that chooses it."""
    (tmp_path / "to").write_text("")
    assert main([str(EXAMPLE), "--to", str(tmp_path / "to")]) == 2
    assert re.search(r"cannot write \S+/to/\S+: Not a directory. Name with --to", capsys.readouterr().err)


def test_servers_of_one_host_stop_in_order(files: dict[str, str]) -> None:
    """systemd stops the unit that starts later first: a worker before its broker, a broker before its controller."""
    host = "london/kafka.london.example"
    assert "After=network-online.target time-sync.target kafka-controller.service\n" in files[f"{host}/kafka-broker.service"]
    assert "After=network-online.target time-sync.target\n" in files[f"{host}/kafka-controller.service"]
    assert "time-sync.target kafka-broker.service\n" in files["london/notary.london.example/notary-worker.service"]


def test_the_proposed_cluster_id_is_taken(tmp_path: Path) -> None:
    """The file renders after the id from the error message is copied into it."""
    with pytest.raises(SitesError) as refused:
        read_sites(changed(tmp_path, '"Qk1vZHJsS2VhX2VtcGxlMQ"', '""'))
    proposed = re.search(r"write '(.{22})'", str(refused.value))
    assert proposed is not None
    assert read_sites(changed(tmp_path, "Qk1vZHJsS2VhX2VtcGxlMQ", proposed[1])).kafka.cluster_id == proposed[1]


def test_rendered_servers_have_the_safety_settings(files: dict[str, str]) -> None:
    """Every broker and controller has the settings that prevent the loss of acknowledged records and access without a right."""
    found = [text for path, text in files.items() if path.endswith(("broker.properties", "controller.properties"))]
    assert len(found) == 6
    for text in map(properties, found):
        assert text["unclean.leader.election.enable"] == text["auto.create.topics.enable"] == text["delete.topic.enable"] == "false"
        assert text["log.retention.ms"] == text["log.retention.bytes"] == "-1"
        assert text["min.insync.replicas"] == "2"
        assert text["process.roles"] == "broker" or text["default.replication.factor"] == "3"
        assert text["allow.everyone.if.no.acl.found"] == "false"
        assert text["authorizer.class.name"].endswith(".StandardAuthorizer")
        assert (text["ssl.client.auth"], text["ssl.enabled.protocols"]) == ("required", "TLSv1.3")
        assert set(text["listener.security.protocol.map"].split(",")) == {"BROKER:SSL", "CONTROLLER:SSL"}
        assert not {user for user in text["super.users"].split(";") if not re.fullmatch(r"User:(broker|controller)-\d+", user)}
        assert "controller.quorum.voters" not in text


def test_every_controller_is_formatted_with_the_same_voters(files: dict[str, str]) -> None:
    """All controllers are formatted with the same directory ids of voters; a broker is formatted without any."""
    scripts = {path: text for path, text in files.items() if "format-" in path}
    voters = [re.findall(r"--initial-controllers (\S+)", text) for path, text in scripts.items() if "controller" in path.split("/")[-1]]
    assert len(voters) == 3
    assert voters[0] == voters[1] == voters[2]
    ids = [voter.split(":")[-1] for voter in voters[0][0].split(",")]
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", made) for made in ids)
    assert not any("--initial-controllers" in text for path, text in scripts.items() if path.endswith("format-broker.sh"))


def test_no_unit_formats(files: dict[str, str]) -> None:
    """An operator formats disks: no unit calls the tool, and none starts on a disk that is not formatted."""
    units = {path: text for path, text in files.items() if path.endswith(".service") and "kafka" in path.split("/")[-1]}
    assert len(units) == 6
    for text in units.values():
        assert "format" not in text
        assert "AssertPathExists=/var/lib/notary/" in text
        assert "/meta.properties\n" in text


@pytest.mark.seconds
def test_a_formatted_disk_stays(tmp_path: Path) -> None:
    """On a formatted disk the script changes nothing, and exits with 1."""
    text = EXAMPLE.read_text() + f'[folders]\ndata = "{tmp_path}/data"\nkafka = "{tmp_path}/kafka"\n'
    (tmp_path / "sites.toml").write_text(text)
    assert main([str(tmp_path / "sites.toml"), "--to", str(tmp_path / "to")]) == 0
    (tmp_path / "data" / "broker-1").mkdir(parents=True)
    (tmp_path / "data" / "broker-1" / "meta.properties").write_text("as it was")
    (tmp_path / "kafka" / "bin").mkdir(parents=True)
    (tmp_path / "kafka" / "bin" / "kafka-storage.sh").symlink_to("/bin/true")
    host = tmp_path / "to" / "london" / "kafka.london.example"
    ended = subprocess.run([host / "format-broker.sh"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"{tmp_path}/data/broker-1 is formatted already: nothing was changed\n")
    assert subprocess.run([host / "format-controller.sh"], check=False).returncode == 0


@pytest.mark.parametrize("site", ["london", "paris", "zurich"])
def test_workers_read_their_configuration(files: dict[str, str], tmp_path: Path, site: str) -> None:
    """`notary serve` accepts its configuration, with its site, its certificate and all brokers."""
    (tmp_path / "notary.toml").write_text(files[f"{site}/notary.{site}.example/notary.toml"])
    config = load(tmp_path / "notary.toml", {}, {})
    assert (config.worker.name, config.sender.data_centre) == (f"{site}-1", site)
    assert config.log.security_protocol == "SSL"
    assert config.log.cert_file == f"/etc/notary/tls/worker-{site}-1/cert.pem"
    assert config.log.bootstrap.count(":9092") == 3


def test_workers_keep_snapshots_and_segments(tmp_path: Path) -> None:
    """The places in the sites file are those of every worker; without them there are none."""
    file = changed(tmp_path, "[kafka]", "[snapshots]\nurl = 's3://bucket/indexes'\n[archive]\nurl = '/srv/segments'\n[kafka]")
    for source, places in ((EXAMPLE, ("", "")), (file, ("s3://bucket/indexes", "/srv/segments"))):
        rendered = render(read_sites(source))
        for site in ("london", "paris", "zurich"):
            (tmp_path / "notary.toml").write_text(rendered[f"{site}/notary.{site}.example/notary.toml"])
            config = load(tmp_path / "notary.toml", {}, {})
            assert (config.snapshots.url, config.archive.url) == places
            assert config.snapshots.every_s == (86_400 if config.snapshots.url else 0)


@pytest.mark.parametrize("section", ["snapshots", "archive"])
@pytest.mark.parametrize(("url", "folder"), [("/srv/kept", "/srv/kept"), ("file:///srv/kept", "/srv/kept"), ("s3://bucket/kept", "")])
def test_a_worker_may_write_to_a_folder_of_the_sites_file(tmp_path: Path, section: str, url: str, folder: str) -> None:
    """`ProtectSystem=strict` leaves only ReadWritePaths writable: the data folder, and the folder of snapshots or segments."""
    rendered = render(read_sites(changed(tmp_path, "[kafka]", f"[{section}]\nurl = '{url}'\n[kafka]")))
    (tmp_path / "notary-worker.service").write_text(rendered["london/notary.london.example/notary-worker.service"])
    settings = read_unit(tmp_path / "notary-worker.service")
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["ReadWritePaths"] == [f"/var/lib/notary/worker {folder}".rstrip()]


def test_an_upgrade_of_kafka_loads_the_changed_units(tmp_path: Path, files: dict[str, str]) -> None:
    """The units name the folder of Kafka, so the page renders them again, copies them, and has systemd read them."""
    after = render(read_sites(changed(tmp_path, "[kafka]", "[folders]\nkafka = '/opt/kafka-2'\n[kafka]")))
    assert {path.rpartition("/")[2] for path, text in files.items() if text != after[path] and path.endswith(".service")} == {
        "kafka-broker.service",
        "kafka-controller.service",
    }
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    (upgrade,) = re.findall(r"To upgrade Kafka,.*?\*\*On Kubernetes", page, re.DOTALL)
    for step in ("Render", "`give`", "`systemctl daemon-reload`", "(#rolling-restart-of-kafka)"):
        assert step in upgrade


def test_no_file_says_who_may_destroy(files: dict[str, str]) -> None:
    """No file grants a right to alter or to delete, all rights, or a right on all topics."""
    sites = read_sites(EXAMPLE)
    read, given = {"Read", "Describe", "DescribeConfigs"}, {"Read", "Write", "Describe", "DescribeConfigs", "Create"}
    wanted = [
        ({f"worker-{site.name}-1" for site in sites.site}, given - {"Create"}),
        ({*sites.clients.readers}, read),
        ({*sites.clients.operators}, given),
    ]
    assert [({*principals}, {*operations}) for principals, operations in acls(sites)] == wanted
    scripts = [text for path, text in files.items() if path.endswith("acls.sh")]
    assert scripts
    for text in scripts:
        assert set(re.findall(r"--operation (\S+)", text)) == given
        assert set(re.findall(r"--topic (\S+)", text)) == {"notary.ordering", "notary.payload"}


def test_the_same_file_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run writes nothing; `--check` lists the changes that a render would make, and makes none."""
    assert main([str(EXAMPLE), "--to", str(tmp_path / "to")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(render(read_sites(EXAMPLE)))
    assert main([str(EXAMPLE), "--to", str(tmp_path / "to"), "--check"]) == 0
    assert main([str(EXAMPLE), "--to", str(tmp_path / "to")]) == 0
    assert capsys.readouterr().out == ""
    other = changed(tmp_path, "replication = 3", "replication = 3\nbroker_heap_mib = 2048")
    assert main([str(other), "--to", str(tmp_path / "to"), "--check"]) == 1
    assert [line.split("/")[-1] for line in capsys.readouterr().out.splitlines()] == ["kafka-broker.service"] * 3
    assert main([str(EXAMPLE), "--to", str(tmp_path / "to"), "--check"]) == 0


def test_a_host_that_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of a host that is gone stay, and are named, so that an operator removes them."""
    main([str(EXAMPLE), "--to", str(tmp_path / "to")])
    capsys.readouterr()
    assert main([str(changed(tmp_path, "notary.paris.example", "notary2.paris.example")), "--to", str(tmp_path / "to")]) == 0
    assert "paris/notary.paris.example/notary.toml is not made from" in capsys.readouterr().err
    assert (tmp_path / "to" / "paris" / "notary.paris.example" / "notary.toml").exists()


needs_systemd = pytest.mark.skipif(
    not os.environ.get("CI") and shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)"
)


@pytest.fixture(params=[EXAMPLE, ONE_BOX], ids=["sites", "one-box"])
def units(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """The units of a sites file, with existing programs, since systemd looks for them."""
    for program in ("java", "notary/bin/notary"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).symlink_to("/bin/true")
    folders = f'\n[folders]\njava = "{tmp_path}/java"\nnotary = "{tmp_path}/notary"\n'
    (tmp_path / "sites.toml").write_text(request.param.read_text() + folders)
    main([str(tmp_path / "sites.toml"), "--to", str(tmp_path / "to")])
    return sorted((tmp_path / "to").rglob("*.service"))


def complaints(unit: Path) -> str:
    """Returns systemd's complaints about a unit, since it exits with 0 after many of them."""
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    return f"{ran.stdout}{ran.stderr}{'' if ran.returncode == 0 else ran.returncode}"


def enclosed(unit: Path) -> bool:
    """Returns whether systemd rates a service's exposure at most 2.0 of 10."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.seconds
@needs_systemd
def test_systemd_reads_every_unit(units: list[Path]) -> None:
    """systemd reads every unit without a complaint, and rates its sandbox as sufficient."""
    assert {unit.name for unit in units} == {"kafka-broker.service", "kafka-controller.service", "notary-worker.service"}
    assert [said for unit in units if (said := complaints(unit))] == []
    assert all(map(enclosed, units))


@pytest.mark.seconds
@needs_systemd
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ProtectSystem=strict", "ProtectSystem=strickt"),
        ("NoNewPrivileges=yes", "NoNewPrivilege=yes"),
        ("SystemCallFilter=~@privileged", "SystemCallFilter=~@privilege"),
        ("/java ", "/jav "),
        ("/notary serve", "/notar serve"),
    ],
)
def test_a_wrong_unit_is_noticed(units: list[Path], before: str, after: str) -> None:
    """For each unit with that line misspelt systemd complains, so the test above can fail."""
    broken = [unit for unit in units if before in unit.read_text()]
    assert broken
    for unit in broken:
        unit.write_text(unit.read_text().replace(before, after))
        assert complaints(unit)


@pytest.mark.seconds
@needs_systemd
def test_a_unit_without_its_sandbox_is_noticed(units: list[Path]) -> None:
    """With three lines less a unit's sandbox is not sufficient."""
    for unit in units:
        lines = unit.read_text().splitlines(keepends=True)
        open_lines = [line for line in lines if not line.startswith(("SystemCallFilter", "CapabilityBoundingSet", "ProtectSystem"))]
        assert len(open_lines) == len(lines) - 4
        unit.write_text("".join(open_lines))
        assert not enclosed(unit)


def test_example_is_as_documented() -> None:
    """The manual's table has every setting of a sites file with its default."""
    rows = re.findall(r"^\| `\[(\w+)\]` `(\w+)` \| (.*?) \|", (DEPLOY / "sites" / "README.md").read_text(), re.MULTILINE)
    documented = {(section, key): default for section, key, default in rows}
    sites = read_sites(EXAMPLE)
    actual = {
        (section, field.name): field.default
        for section in ("notary", "kafka", "ports", "folders", "clients", "snapshots", "archive")
        for field in msgspec.structs.fields(getattr(sites, section))
    }
    assert documented.keys() == actual.keys()
    for key, default in actual.items():
        assert documented[key] == ("none" if default in (msgspec.NODEFAULT, "") else f"`{json.dumps(default)}`"), key
