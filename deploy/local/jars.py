"""Fetching jars, once: those of Kafka, those of its command-line tools, and those with which Spark reads it.

PySpark carries Apache Ivy; Ivy reads `deploy/kafka/ivy.xml`, the one place that says which versions, and resolves the rest
in its default way. The jars are put into a folder beside their place and renamed, so they are there whole or not at
all; a lock makes a second process wait for the first instead of fetching too.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import CannotRun
from deploy.local.files import locked
from deploy.local.java import Java

KAFKA = Path(__file__).parents[1] / "kafka"
"""Where the files for the Java side are: `ivy.xml`, `log4j2.xml`."""

ATTEMPTS_MAX = 2
"""Ivy keeps what it has fetched, so a second attempt repairs a lost connection at little cost; after that it is not the
connection."""


@dataclass(frozen=True)
class Jars:
    """Jars that go together: a configuration of `ivy.xml`, known by one of them."""

    conf: str
    artifact: str
    name: str
    """Of their folder in the cache, and in what is told."""
    variable: str
    """What in the environment names another folder."""
    megabytes: int

    @property
    def version(self) -> str:
        """The version that `ivy.xml` pins."""
        module = ElementTree.parse(KAFKA / "ivy.xml")  # noqa: S314, our own file
        pinned = module.find(f"./dependencies/dependency[@name='{self.artifact}']")
        assert pinned is not None, f"ivy.xml pins {self.artifact}"
        return pinned.attrib["rev"]

    @property
    def told(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    @property
    def home(self) -> Path:
        """Their folder: what the variable says, or `.cache/<name>/<version>`. They are in its `libs`, as in Apache's distribution."""
        if chosen := os.environ.get(self.variable):
            return Path(chosen).absolute()
        return cache_folder() / self.name / self.version

    @property
    def landmark(self) -> str:
        """The jar that tells that all are there, and of which version."""
        return f"{self.artifact}-{self.version}.jar"


BROKER = Jars("broker", "kafka_2.13", "kafka", "NOTARY_KAFKA_HOME", 44)
SPARK = Jars("spark", "spark-sql-kafka-0-10_2.13", "spark-kafka", "NOTARY_SPARK_KAFKA_HOME", 10)
TOOLS = Jars("tools", "kafka-tools", "kafka-tools", "NOTARY_KAFKA_TOOLS_HOME", 1)


def cache_folder() -> Path:
    """Return where fetched things and clusters go by default: `.cache` of the project, or of the working folder for an
    installed package."""
    project = Path(__file__).parents[2]
    return (project if (project / "pyproject.toml").is_file() else Path.cwd()) / ".cache"


def fetch_jars(java: Java, jars: Jars) -> Path:
    """Return the home of these jars with all of them in it, fetched if they are not there. Progress goes to stderr; raises
    CannotRun."""
    home, wanted = jars.home, jars.home / "libs" / jars.landmark
    if wanted.is_file():
        return home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / "fetch.lock"):
            if wanted.is_file():
                return home  # another process fetched them while we waited
            if (home / "libs").exists():
                raise CannotRun(
                    f"{home}/libs has jars, but not {jars.landmark}: they are of another version. "
                    f"Remove it, or set {jars.variable} to an empty folder or to one with that version"
                )
            # A crash in here leaves a folder `fetching-*`, which nothing reads and which may be removed.
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=home) as beside:
                _run_ivy(java, Path(beside), jars)
                (Path(beside) / "libs").rename(home / "libs")
    except OSError as error:
        raise CannotRun(
            f"the jars of {jars.told} cannot be stored in {home}: {error}. Set {jars.variable} to a folder that can be written"
        ) from error
    return home


def _run_ivy(java: Java, folder: Path, jars: Jars) -> None:
    """Fetch into `folder/libs`, through a cache of its own so that no Ivy or Maven settings of this user take part."""
    command = [
        java.path,
        f"-Divy.default.ivy.user.dir={folder / 'ivy'}",
        *("-jar", str(_ivy_jar())),
        *("-ivy", str(KAFKA / "ivy.xml")),
        *("-cache", str(folder / "cache")),
        *("-confs", jars.conf),
        *("-retrieve", str(folder / "libs" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    _tell(jars, f"fetching its jars ({jars.megabytes} MB, once) into {folder.parent}")
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # Ivy exits 0 with a jar missing in some cases: its exit code and the landmark must both say yes.
        code, said = _follow(command, jars)
        if code == 0 and (folder / "libs" / jars.landmark).is_file():
            return
        _tell(jars, f"attempt {attempt} of {ATTEMPTS_MAX} failed (exit code {code})")
    tail = "\n  ".join(line for line in said if line.strip())
    advice = "Is the network, or its proxy, there?"
    if "PKIX" in tail:
        # The JDK of a wheel brings its own authorities, not those that this machine was given for its network.
        advice = (
            "This Java does not trust the certificate that it was shown. If your network has an authority of its own, "
            "name a trust store that has it: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE."
        )
    raise CannotRun(
        f"{jars.told} could not be fetched with Ivy (exit code {code}). {advice} "
        f"Or point {jars.variable} at a folder whose libs/ has its jars. Ivy's last words:\n  {tail}"
    )


def _follow(command: list[str], jars: Jars) -> tuple[int, deque[str]]:
    """Run Ivy, telling how far it is: it says `found …` for each module that it resolves, `[SUCCESSFUL ] …` for each
    file fetched."""
    said: deque[str] = deque(maxlen=25)
    modules = files = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            said.append(line.rstrip())
            modules += line.lstrip().startswith("found ")
            files += "[SUCCESSFUL ]" in line
            if line.strip().startswith(("found ", "[SUCCESSFUL ]")) and (modules + files) % 10 == 0:
                _tell(jars, f"{modules} modules resolved, {files} files fetched")
        return ivy.wait(), said


def _tell(jars: Jars, what: str) -> None:
    print(f"{jars.told}: {what}", file=sys.stderr, flush=True)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")  # finds the folder without importing PySpark, which takes seconds
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise CannotRun(
        "Kafka's jars are fetched with the Ivy that PySpark carries, and no pyspark/jars/ivy-*.jar is installed. "
        "Install it (pip install pyspark==4.2.0), or set NOTARY_KAFKA_HOME to an unpacked Kafka"
    )
