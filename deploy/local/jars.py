"""Fetching Kafka's jars, once.

PySpark carries Apache Ivy; Ivy reads `deploy/kafka/ivy.xml`, the one place that says which Kafka, and resolves the rest
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
from pathlib import Path

from deploy.local.errors import CannotRun
from deploy.local.files import locked
from deploy.local.java import Java

KAFKA = Path(__file__).parents[1] / "kafka"
"""Where the files for the Java side are: `ivy.xml`, `log4j2.xml`."""

ATTEMPTS_MAX = 2
"""Ivy keeps what it has fetched, so a second attempt repairs a lost connection at little cost; after that it is not the
connection."""


def kafka_version() -> str:
    """Return the version of Kafka that `ivy.xml` pins."""
    module = ElementTree.parse(KAFKA / "ivy.xml")  # noqa: S314, our own file
    pinned = module.find("./dependencies/dependency[@name='kafka_2.13']")
    assert pinned is not None, "ivy.xml pins kafka_2.13"
    return pinned.attrib["rev"]


def cache_folder() -> Path:
    """Return where fetched things and clusters go by default: `.cache` of the project, or of the working folder for an
    installed package."""
    project = Path(__file__).parents[2]
    return (project if (project / "pyproject.toml").is_file() else Path.cwd()) / ".cache"


def kafka_home() -> Path:
    """Return the folder of this Kafka: NOTARY_KAFKA_HOME, or `.cache/kafka/<version>`. Its jars are in `libs`, as in
    Apache's distribution."""
    if chosen := os.environ.get("NOTARY_KAFKA_HOME"):
        return Path(chosen).absolute()
    return cache_folder() / "kafka" / kafka_version()


def fetch_jars(java: Java) -> Path:
    """Return Kafka's home with all jars in it, fetched if they are not there. Progress goes to stderr; raises
    CannotRun."""
    home, version = kafka_home(), kafka_version()
    wanted = home / "libs" / f"kafka_2.13-{version}.jar"
    if wanted.is_file():
        return home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / "fetch.lock"):
            if wanted.is_file():
                return home  # another process fetched them while we waited
            if (home / "libs").exists():
                raise CannotRun(
                    f"{home}/libs has jars, but not kafka_2.13-{version}.jar: it is another Kafka. "
                    "Remove it, or set NOTARY_KAFKA_HOME to an empty folder or to a Kafka of that version"
                )
            # A crash in here leaves a folder `fetching-*`, which nothing reads and which may be removed.
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=home) as beside:
                _run_ivy(java, Path(beside), version)
                (Path(beside) / "libs").rename(home / "libs")
    except OSError as error:
        raise CannotRun(
            f"Kafka's jars cannot be stored in {home}: {error}. Set NOTARY_KAFKA_HOME to a folder that can be written"
        ) from error
    return home


def _run_ivy(java: Java, folder: Path, version: str) -> None:
    """Fetch into `folder/libs`, through a cache of its own so that no Ivy or Maven settings of this user take part."""
    command = [
        java.path,
        f"-Divy.default.ivy.user.dir={folder / 'ivy'}",
        *("-jar", str(_ivy_jar())),
        *("-ivy", str(KAFKA / "ivy.xml")),
        *("-cache", str(folder / "cache")),
        *("-confs", "default"),
        *("-retrieve", str(folder / "libs" / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    print(f"kafka {version}: fetching its jars (44 MB, once) into {folder.parent}", file=sys.stderr, flush=True)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # Ivy exits 0 with a jar missing in some cases: its exit code and the broker's own jar must both say yes.
        code, said = _follow(command, version)
        if code == 0 and (folder / "libs" / f"kafka_2.13-{version}.jar").is_file():
            return
        print(
            f"kafka {version}: attempt {attempt} of {ATTEMPTS_MAX} failed (exit code {code})",
            file=sys.stderr,
            flush=True,
        )
    tail = "\n  ".join(line for line in said if line.strip())
    advice = "Is the network, or its proxy, there?"
    if "PKIX" in tail:
        # The JDK of a wheel brings its own authorities, not those that this machine was given for its network.
        advice = (
            "This Java does not trust the certificate that it was shown. If your network has an authority of its own, "
            "name a trust store that has it: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE."
        )
    raise CannotRun(
        f"Kafka {version} could not be fetched with Ivy (exit code {code}). {advice} "
        f"Or point NOTARY_KAFKA_HOME at a Kafka {version} that you have. Ivy's last words:\n  {tail}"
    )


def _follow(command: list[str], version: str) -> tuple[int, deque[str]]:
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
                print(f"kafka {version}: {modules} modules resolved, {files} files fetched", file=sys.stderr, flush=True)
        return ivy.wait(), said


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")  # finds the folder without importing PySpark, which takes seconds
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise CannotRun(
        "Kafka's jars are fetched with the Ivy that PySpark carries, and no pyspark/jars/ivy-*.jar is installed. "
        "Install it (pip install pyspark==4.2.0), or set NOTARY_KAFKA_HOME to an unpacked Kafka"
    )
