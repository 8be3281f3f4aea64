"""Fetches jars, once: those of Kafka, those of its command-line tools, and those with which files for deployments are checked.

PySpark ships Apache Ivy. Ivy reads `deploy/kafka/ivy.xml`, the only file that pins versions, and resolves dependencies by
its defaults. The jars are fetched into a folder beside the target, which is then renamed, so either all jars are there or
none. A second process waits for a lock instead of fetching too.

`deploy/kafka/jars.sha256` pins the bytes of each jar. After a change of `ivy.xml`, `python -P -m deploy.local pin` writes it again.
"""

import hashlib
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
from deploy.local.java import Java
from ordering.durable import locked_file, move_into_place

KAFKA = Path(__file__).parents[1] / "kafka"
"""The folder of the files for the Java side: `ivy.xml`, `jars.sha256`, `log4j2.xml`."""
PINS = KAFKA / "jars.sha256"
"""A line for each jar, as sha256sum prints it: the hash, and `<set>/<file name>`."""

ATTEMPTS_MAX = 2
"""Ivy keeps the files that it has fetched, so a second attempt after a lost connection costs little. If the second fails
too, the connection is not the cause."""


@dataclass(frozen=True)
class Jars:
    """A set of jars: one configuration of `ivy.xml`. The version and presence of the jar `artifact` stand for those of the set."""

    conf: str
    artifact: str
    name: str
    """The name of their folder in the cache, and of the set in messages."""
    variable: str
    """The environment variable that names another folder."""
    megabytes: int

    @property
    def version(self) -> str:
        """The version that `ivy.xml` pins."""
        module = ElementTree.parse(KAFKA / "ivy.xml")  # noqa: S314, our own file
        pinned = module.find(f"./dependencies/dependency[@name='{self.artifact}']")
        assert pinned is not None, f"ivy.xml pins {self.artifact}"
        return pinned.attrib["rev"]

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"

    @property
    def home(self) -> Path:
        """The folder that the variable names, else `.cache/<name>/<version>`. The jars are in its `libs`, as in Apache's distribution."""
        if chosen := os.environ.get(self.variable):
            return Path(chosen).absolute()
        return cache_folder() / self.name / self.version

    @property
    def landmark(self) -> str:
        """The file name of the jar of `artifact`: if it is there, all are there, in that version."""
        return f"{self.artifact}-{self.version}.jar"


BROKER = Jars("broker", "kafka_2.13", "kafka", "NOTARY_KAFKA_HOME", 44)
TOOLS = Jars("tools", "kafka-tools", "kafka-tools", "NOTARY_KAFKA_TOOLS_HOME", 1)
STRIMZI = Jars("strimzi", "crd-generator", "strimzi", "STRIMZI_HOME", 39)
JMX = Jars("jmx", "jmx_prometheus_javaagent", "jmx", "NOTARY_JMX_HOME", 3)
ALL = (BROKER, TOOLS, STRIMZI, JMX)
"""Every set that `jars.sha256` pins; the last two are for `deploy.manifests`."""


def cache_folder() -> Path:
    """Return the default folder of fetched files and of clusters: `.cache` of the project, or of the working directory for
    an installed package."""
    project = Path(__file__).parents[2]
    return (project if (project / "pyproject.toml").is_file() else Path.cwd()) / ".cache"


def pin(java: Java) -> None:
    """Fetch all sets as `ivy.xml` has them, and pin their bytes. Raises CannotRun."""
    homes = {jars.name: fetch_jars(java, jars, pinned=False) for jars in ALL}
    PINS.write_text(
        "".join([f"{found}  {name}/{file}\n" for name, home in homes.items() for file, found in _hashes(home / "libs").items()])
    )


def _hashes(libs: Path) -> dict[str, str]:
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(libs.glob("*.jar"))}


def _check(libs: Path, jars: Jars) -> None:
    """Raise CannotRun if a fetched jar is not the pinned one, is missing, or is one too many."""
    lines = [line.split("  ") for line in PINS.read_text().splitlines()]
    wanted = {place.removeprefix(f"{jars.name}/"): pinned for pinned, place in lines if place.startswith(f"{jars.name}/")}
    found = _hashes(libs)
    for file in sorted(wanted.keys() | found.keys()):
        if wanted.get(file) != found.get(file):
            raise CannotRun(
                f"{jars.label}: the SHA-256 of {file} is {found.get(file, 'none, it was not fetched')}, and in {PINS.name} it is"
                f" {wanted.get(file, 'not listed')}: this project was not tested with that jar. Fetch it through another network; after a"
                " change of ivy.xml, run `python -P -m deploy.local pin`"
            )


def fetch_jars(java: Java, jars: Jars, *, pinned: bool = True) -> Path:
    """Fetch these jars if they are missing, and return their home. Reports its progress on stderr. Raises CannotRun.

    Fetched jars are compared with `PINS`, unless `pinned` is false.
    """
    home, wanted = jars.home, jars.home / "libs" / jars.landmark
    if wanted.is_file():
        return home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked_file(home / "fetch.lock"):
            if wanted.is_file():
                return home  # another process fetched them while we waited
            if (home / "libs").exists():
                raise CannotRun(
                    f"{home}/libs has jars, but not {jars.landmark}: they are of another version. "
                    f"Remove it, or set {jars.variable} to an empty folder or to one with that version"
                )
            # A crash here leaves a folder `fetching-*`, which nothing reads and which may be removed.
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=home) as beside:
                _run_ivy(java, Path(beside), jars)
                if pinned:
                    _check(Path(beside) / "libs", jars)
                move_into_place(Path(beside) / "libs", home / "libs")
    except OSError as error:
        raise CannotRun(
            f"the jars of {jars.label} cannot be stored in {home}: {error}. Set {jars.variable} to a folder that can be written"
        ) from error
    return home


def _run_ivy(java: Java, folder: Path, jars: Jars) -> None:
    """Fetch into `folder/libs`, with a separate cache, so that Ivy and Maven settings of this user have no effect."""
    command = [
        java.path,
        f"-Divy.default.ivy.user.dir={folder / 'ivy'}",
        *("-jar", str(_ivy_jar())),
        *("-ivy", str(KAFKA / "ivy.xml")),
        *("-cache", str(folder / "cache")),
        *("-confs", jars.conf),
        *("-retrieve", str(folder / "libs" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    _report(jars, f"fetching its jars ({jars.megabytes} MB, once) into {folder.parent}")
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # Ivy sometimes exits with 0 although a jar is missing: so the landmark must be there too.
        code, output = _follow(command, jars)
        if code == 0 and (folder / "libs" / jars.landmark).is_file():
            return
        _report(jars, f"attempt {attempt} of {ATTEMPTS_MAX} failed (exit code {code})")
    tail = "\n  ".join(line for line in output if line.strip())
    advice = "Check the network and its proxy."
    if "PKIX" in tail:
        # The JDK of a wheel has its own certificate authorities, not those that this machine has for its network.
        advice = (
            "This Java does not trust the certificate that it was shown. If your network has an authority of its own, "
            "name a trust store that has it: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE."
        )
    raise CannotRun(
        f"{jars.label} could not be fetched with Ivy (exit code {code}). {advice} "
        f"Or point {jars.variable} at a folder whose libs/ has its jars. Ivy's last output:\n  {tail}"
    )


def _follow(command: list[str], jars: Jars) -> tuple[int, deque[str]]:
    """Run Ivy, report its progress, and return its exit code and last lines. Ivy prints `found …` for each module that it
    resolves, and `[SUCCESSFUL ] …` for each file fetched."""
    output: deque[str] = deque(maxlen=25)
    modules = files = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            output.append(line.rstrip())
            modules += line.lstrip().startswith("found ")
            files += "[SUCCESSFUL ]" in line
            if line.strip().startswith(("found ", "[SUCCESSFUL ]")) and (modules + files) % 10 == 0:
                _report(jars, f"{modules} modules resolved, {files} files fetched")
        return ivy.wait(), output


def _report(jars: Jars, what: str) -> None:
    print(f"{jars.label}: {what}", file=sys.stderr, flush=True)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")  # finds the folder without importing PySpark, which takes seconds
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise CannotRun(
        "Kafka's jars are fetched with the Ivy that PySpark ships, and no pyspark/jars/ivy-*.jar is installed. "
        "Install it (pip install pyspark==4.2.0), or set NOTARY_KAFKA_HOME to an unpacked Kafka"
    )
