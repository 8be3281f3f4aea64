"""`Mirror`: MirrorMaker 2 as a process of this machine, which copies a notary's topics from one cluster to another.

    with Mirror(folder, source.bootstrap, target.bootstrap, "notary") as mirror:
        ...
        mirror.kill()

`deploy/kafka/mirror.properties` has its settings. The topics must exist in both clusters: `notary failover --prepare` creates those of the
target. Nothing is written to the source.
"""

import os
import re
import signal
import string
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local import tether
from deploy.local.jars import KAFKA, MIRROR, fetch_jars
from deploy.local.java import find_java
from deploy.local.process import BrokerProcess, spawn
from deploy.local.settings import jvm_flags

HEAP_MIB = 256
TASKS = 2
GRACE_SECONDS = 30.0


def mirror_properties(source: str, target: str, prefix: str, *, replicas: int = 1, tasks: int = TASKS) -> str:
    """Return MirrorMaker's settings for the topics of a prefix. `replicas` are those of its own three topics."""
    topics = ", ".join(re.escape(f"{prefix}.{topic}").replace("\\", "\\\\") for topic in ("ordering", "payload"))
    template = string.Template((KAFKA / "mirror.properties").read_text())
    return template.substitute(source=source, target=target, topics=topics, tasks=tasks, replicas=replicas)


class Mirror:
    """One MirrorMaker process. Its settings and its log are in `folder`; it runs inside the `with` block."""

    def __init__(self, folder: Path, source: str, target: str, prefix: str) -> None:
        self.folder = folder
        self._properties = mirror_properties(source, target, prefix)
        self._process: BrokerProcess | None = None
        self._tether: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder / "mirror.log"

    @property
    def alive(self) -> bool:
        """True while it runs."""
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Start it. It copies after some seconds, from where an earlier one stopped. Raises CannotRun without a Java or the jars."""
        java = find_java()
        libs = fetch_jars(java, MIRROR) / "libs"
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "mirror.properties"
        properties.write_text(self._properties)
        classpath = os.pathsep.join(str(jar) for jar in sorted(libs.glob("*.jar")))
        logging = f"-Dlog4j2.configurationFile={KAFKA / 'log4j2.xml'}"
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        self._process = spawn([java.path, *jvm_flags(HEAP_MIB), logging, "-cp", classpath, main, str(properties)], self.log)
        self._tether = tether.tie_process(self._process)

    def stop(self) -> None:
        """End it in order (SIGTERM)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send(signal.SIGCONT)
            self._process.send(number)
            if not self._process.wait(GRACE_SECONDS):
                self._process.send(signal.SIGKILL)
                self._process.wait(GRACE_SECONDS)
        self._process = None
        if self._tether is not None:
            tether.release(self._tether)
            self._tether = None

    def pause(self) -> None:
        """Freeze it (SIGSTOP): the mirror falls behind."""
        assert self._process is not None
        self._process.freeze()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
