"""Three rendered sites: each unit's command runs in its site's network, with its host's folders mounted.

systemd does not run: `test_units.py` checks its sandboxes. This module reads of each unit the command, its assertions, and whether
memory may be written and executed.
"""

import ctypes
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import msgspec
from aiokafka.helpers import create_ssl_context

from deploy.centres import Centres
from deploy.local.jars import BROKER, TOOLS, fetch_jars
from deploy.local.java import find_java
from deploy.local.runtime import prepare
from deploy.namespace import inside
from deploy.pki import Authority
from deploy.pki.__main__ import issue_all
from deploy.render import Sites, read_sites, render
from deploy.render.tree import OPERATOR, write
from notary import parties
from tests.clients.party import Party

ROOT = Path(__file__).parents[2]
NOT_READY = (
    "Kafka at ",
    "broker(s) are registered",
    "Kafka does not return",
    "may still be empty",
    "did not return",
    "know topic",
    "a leader",
)
"""The error of a command has one of these while brokers are not up yet."""
_TOOLS = {
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-metadata-quorum.sh": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
_STOPPED = {"notary-worker.service": 0, "kafka-broker.service": 143, "kafka-controller.service": 143}
"""The exit code after SIGTERM, by unit, in the order of stopping: workers, brokers, controllers. Java's is 143."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""The environment that systemd gives a service, without any variable of this test."""
_PR_SET_MDWE, _REFUSE_EXEC_GAIN = 65, 1


@dataclass
class Service:
    """The process of a unit."""

    name: str
    host: str
    process: subprocess.Popen[bytes]
    out: Path
    restarted: bool = False
    """Whether it ended before and was started again."""

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        return f"--- {self.name} on {self.host}:\n{self.out.read_text(errors='replace')[-3000:]}"

    def stop(self) -> None:
        """Send SIGTERM; checks that it ends with the exit code that its unit counts as success."""
        assert self.process.poll() is None, self.last_lines
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == _STOPPED[self.name], self.last_lines


@dataclass
class Installed:
    """The hosts of a sites file on this machine: one in each centre, and the operator's in the first."""

    directory: Path
    centres: Centres
    sites: Sites
    authority: Authority
    services: list[Service] = field(default_factory=list)
    """The running services."""
    stopped: list[Service] = field(default_factory=list)
    """The services that were stopped, as an operator stops them."""

    @classmethod
    def install(cls, directory: Path, centres: Centres, text: str, *, tls: bool = True) -> "Installed":
        """Render, create certificates, and copy both to each host. `text` is a sites file without its folders.

        Without `tls` the brokers use plaintext between hosts, which no sites file allows, so that the price of TLS can be measured.
        """
        folders = {name: directory / name for name in ("config", "data", "kafka", "notary")} | {"java": Path(find_java().path)}
        lines = ["[folders]", *(f'{name} = "{folder}"' for name, folder in folders.items())]
        (directory / "sites.toml").write_text(text + "\n" + "\n".join(lines) + "\n")
        sites = read_sites(directory / "sites.toml")
        if not tls:
            kafka, ports = msgspec.structs.replace(sites.kafka, security="PLAINTEXT"), msgspec.structs.replace(sites.ports, scram=0)
            sites = msgspec.structs.replace(sites, kafka=kafka, ports=ports)
        write(render(sites), directory / "rendered")
        for file in (directory / "rendered").rglob("*.properties") if not tls else ():
            file.write_text(file.read_text().replace("://127.0.0.1:", "://:"))  # without TLS the rendered files listen on loopback only
        issue_all(directory / "pki", sites.certificates)
        made = cls(directory, centres, sites, Authority.open(directory / "pki"))
        for name in ("config", "data"):
            folders[name].mkdir()
            for host in made.networks:
                (made.host(host) / name).mkdir(parents=True)
        make_kafka(folders["kafka"])
        make_program(folders["notary"] / "bin" / "notary", f"exec {sys.executable} -m notary")
        made.copy_certificates(OPERATOR)
        for site in sites.site:
            for host in site.hosts:
                made.copy_certificates(host)
                shutil.copytree(directory / "rendered" / site.name / host, made.host(host) / "config", dirs_exist_ok=True)
        shutil.copytree(directory / "rendered" / OPERATOR, made.host(OPERATOR) / "config", dirs_exist_ok=True)
        return made

    @property
    def networks(self) -> dict[str, str]:
        """The network of each host, also of hosts that are in no site yet."""
        hosts = {self.centres.host(number): self.centres.network(number) for number in self.centres.numbers}
        return hosts | {OPERATOR: self.centres.network(1)}

    @property
    def workers(self) -> list[Service]:
        """The running workers."""
        return [service for service in self.services if service.name == "notary-worker.service"]

    def begin(self, party: Party) -> None:
        """Start everything as in deploy/sites/README.md: format, start, grant rights, create a notary with one party."""
        config = self.directory / "config"
        hosts = [node.host for node in self.sites.brokers]
        with ThreadPoolExecutor() as threads:  # each script starts a Java
            for host in hosts:
                self.make_folders(host)
            scripts = ("format-controller.sh", "format-broker.sh")
            for formatted in threads.map(self.run, *zip(*product(hosts, scripts), strict=True)):
                done(formatted)
        for host in hosts:
            self.start(host, "kafka-controller.service")
            self.start(host, "kafka-broker.service")
        if self.sites.tls:
            done(self.run(hosts[0], "acls.sh", str(config / "broker-client.properties")))
        while (made := self.run(OPERATOR, "init.sh", str(config / "keys"))).returncode:
            # It resumes where it stopped. Some brokers may not be up yet, and without TLS nothing has waited for them.
            assert any(words in made.stderr for words in NOT_READY), made.stderr
            self.restart_failed()
            time.sleep(0.2)
        keys = self.host(OPERATOR) / "config" / "keys"
        assert parties.add(keys / "parties.json", party.name, party.public_pem, "the test's party") == "added"
        for host in hosts:
            for name in ("notary-key.pem", "notary-keys.json", "parties.json"):
                target = self.host(host) / "config" / "keys" / name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes((keys / name).read_bytes())
                target.chmod(0o600)
            self.start(host, "notary-worker.service")
        for service in self.workers:
            while "ready at" not in service.out.read_text():
                assert service.process.poll() is None, service.last_lines
                time.sleep(0.1)

    def stop(self, *units: str) -> None:
        """Stop the running services of these units, or of all, in that order."""
        for unit in units or _STOPPED:
            services = [service for service in self.services if service.name == unit]
            for service in services:
                assert service.process.poll() is None, service.last_lines
                service.process.send_signal(signal.SIGTERM)
            for service in services:
                assert service.process.wait() == _STOPPED[unit], service.last_lines
                self.services.remove(service)

    def kill(self, host: str, unit: str | None = None) -> list[Service]:
        """Kill all services of a host, as a loss of power would, or one of them; returns them."""
        died = [service for service in self.services if service.host == host and unit in (None, service.name)]
        for service in died:
            service.process.kill()
        for service in died:
            service.process.wait()
            self.services.remove(service)
        return died

    def restart_failed(self) -> None:
        """Start each service that ended again, as systemd does: all units have `Restart=on-failure`. Fails if it ends a second time."""
        for service in [service for service in self.services if service.process.poll() is not None]:
            assert not service.restarted, f"ended twice, now with {service.process.returncode}: {service.last_lines}"
            print(f"ended with {service.process.returncode}, and started again: {service.last_lines}")
            self.services.remove(service)
            self.start(service.host, service.name).restarted = True

    def host(self, host: str) -> Path:
        """Returns the directory with a host's folders."""
        return self.directory / "hosts" / host

    def context(self, name: str, pki: Path | None = None) -> ssl.SSLContext:
        """Returns the TLS settings of a client with this certificate, of the installation's authority or of another folder's."""
        of_name = (pki or self.directory / "pki") / name
        files = {"certfile": of_name / "cert.pem", "keyfile": of_name / "key.pem"}
        made: ssl.SSLContext = create_ssl_context(cafile=self.directory / "pki" / "ca.pem", **files)
        return made

    def copy_certificates(self, host: str) -> None:
        """Copy all files of the certificate authority to a host, which is possible because the hosts are one machine."""
        for file in (self.directory / "pki").rglob("*.pem"):
            if file.name != "ca-key.pem":
                target = self.host(host) / "config" / "tls" / file.relative_to(self.directory / "pki")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, beside := target.with_suffix(".new"))
                beside.replace(target)

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """Returns a command that runs with a host's folders mounted, and ends with this process however that ends."""
        folders = [(self.host(host) / name, self.directory / name) for name in ("config", "data")]
        mounts = " && ".join(f"mount --bind {source} {target}" for source, target in folders)
        return ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]

    def run(self, host: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host; a name without a path is a file of its configuration folder."""
        program = str(self.directory / "config" / command[0]) if (self.host(host) / "config" / command[0]).exists() else command[0]
        with inside(self.networks[host]):
            return subprocess.run(
                self.command(host, [program, *command[1:]]), env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False
            )

    def start(self, host: str, unit: str) -> Service:
        """Start a unit's command."""
        settings = read_unit(self.host(host) / "config" / unit)
        for key in ("AssertPathExists", "AssertPathIsDirectory", "ReadWritePaths"):
            for path in settings.get(key, []):
                assert self._on(host, path).exists(), f"{unit} on {host}: {key}={path} is not there"
        command = command_of(settings)
        strict = settings.get("MemoryDenyWriteExecute") == ["yes"]
        out = self.host(host) / f"{unit}-{len(list(self.host(host).glob(f'{unit}-*.log')))}.log"
        with out.open("wb") as output, inside(self.networks[host]):
            process = subprocess.Popen(
                self.command(host, command),
                env=ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=refuse_exec_gain if strict else None,
            )
        self.services.append(Service(unit, host, process, out))
        return self.services[-1]

    def make_folders(self, host: str) -> None:
        """Create the data folders of a host, according to its tmpfiles.conf."""
        for line in (self.host(host) / "config" / "tmpfiles.conf").read_text().splitlines():
            kind, folder, mode, *_ = line.split()
            assert kind == "d"
            self._on(host, folder).mkdir(mode=int(mode, 8), exist_ok=True)

    def end(self) -> None:
        """Kill all running services."""
        for service in [*self.stopped, *self.services]:
            code = service.process.poll()
            service.process.kill()
            service.process.wait()
            print(f"{'killed at the end' if code is None else f'ended with {code}'}: {service.last_lines}")

    def _on(self, host: str, path: str) -> Path:
        return self.host(host) / Path(path).relative_to(self.directory)


def done(run: subprocess.CompletedProcess[str]) -> None:
    """Fail with the command's output if it did not succeed."""
    assert run.returncode == 0, f"{run.args}\n{run.stdout}\n{run.stderr}"


def read_unit(file: Path) -> Mapping[str, list[str]]:
    """Returns the settings of a unit, whatever their section."""
    settings: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


def command_of(settings: Mapping[str, list[str]]) -> list[str]:
    """Returns the command of a unit. A Java gets the class archive too, which halves its start.

    The archive fits only a class path that begins with the jars for which it was made. The unit's own folder must have the same jars.
    """
    (command,) = settings["ExecStart"]
    words, runtime = shlex.split(command), prepare()
    if "-cp" in words and runtime.archive:
        at = words.index("-cp")
        jars = {Path(jar).name for jar in runtime.classpath.split(os.pathsep)}
        assert jars <= {jar.name for jar in Path(words[at + 1]).parent.iterdir()}, words
        words[at : at + 2] = [f"-XX:SharedArchiveFile={runtime.archive}", "-cp", f"{runtime.classpath}{os.pathsep}{words[at + 1]}"]
    return words


def make_kafka(folder: Path) -> None:
    """Create a folder like Kafka's distribution, with the used parts: `libs`, and the launchers in `bin`."""
    (folder / "libs").mkdir(parents=True)
    runtime = prepare()
    for jars in (BROKER, TOOLS):
        for jar in sorted((fetch_jars(runtime.java, jars) / "libs").glob("*.jar")):
            (folder / "libs" / jar.name).symlink_to(jar)
    # A class archive fits only a class path that begins with the jars for which it was made.
    archive = f"-XX:SharedArchiveFile={runtime.archive}" if runtime.archive else ""
    start = f"exec {runtime.java.path} {archive} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '{runtime.classpath}:{folder}/libs/*'"
    for name, main in _TOOLS.items():
        make_program(folder / "bin" / name, f"{start} {main}")


def make_program(file: Path, command: str) -> None:
    """Create a program that runs this command with its own arguments appended."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#!/bin/sh\n{command} "$@"\n')
    file.chmod(0o755)


def refuse_exec_gain() -> None:
    """Set MemoryDenyWriteExecute by the kernel's own call, which later programs inherit (Linux 6.3 and newer)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_MDWE, _REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
        os.write(2, b"this kernel cannot refuse memory that is written and executed: started without\n")
