"""Builds Go programs once, from a module of this repository that pins others: `go.mod` their versions, `go.sum` their content."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy.local.commands import run
from deploy.local.errors import CannotRun
from ordering.durable import locked_file, move_into_place


def build(module: Path, packages: Sequence[str], cache: Path, link: str = "") -> Path:
    """Return the folder of the programs; build them unless the same module was built before. Raises CannotRun.

    `packages` are Go packages, `cache` the parent of the folder, `link` the linker's flags.
    """
    content = b"".join(file.read_bytes() for file in sorted(module.iterdir()))
    digest = hashlib.sha256(b"\0".join([content, *[each.encode() for each in (*packages, link)]])).hexdigest()[:16]
    folder = cache / digest
    if folder.exists():
        return folder
    if shutil.which("go") is None:
        raise CannotRun(f"{packages[0]} is built with Go 1.26 or newer, and there is none on the PATH (https://go.dev/dl)")
    cache.mkdir(parents=True, exist_ok=True)
    with locked_file(cache / "build.lock"):
        if not folder.exists():
            beside = cache / f"{digest}.new"
            beside.mkdir(exist_ok=True)
            command = ["go", "build", "-mod=readonly", "-buildvcs=false", f"-ldflags={link}", "-o", f"{beside}{os.sep}", *packages]
            run(command, cwd=module)  # the first time, Go fetches the modules
            # A crash before this line leaves a folder under another name, which is not used as the programs.
            move_into_place(beside, folder)
    return folder
