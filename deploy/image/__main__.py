"""The command line: `python -P -m deploy.image build --base IMAGE | fetch`.

Exits with 0 on success and 2 on failure; stderr has the reason.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from deploy.local.commands import install_debian, run
from deploy.local.errors import CannotRun
from deploy.local.jars import cache_folder
from ordering.durable import locked_file, move_into_place

DONE, COULD_NOT = 0, 2
ROOT: Final = Path(__file__).parents[2]
CONTAINERFILE: Final = Path(__file__).parent / "Containerfile"
EXTRAS: Final = {"notary": "[fast,traces,s3,parquet]", "notary-spark": "[spark,java]"}
"""The images, as the manifests name them, and the extras of pyproject.toml that each has."""
BUILDERS: Final = ("buildah", "podman", "docker")
DEBIAN: Final = "bookworm"
PACKAGES: Final = ("python3", "libstdc++6")
"""Debian packages that a base needs beyond Debian's essential packages, which have glibc and bash."""

_SOURCE: Final = ("pyproject.toml", "README.md", "LICENSE", "ordering", "payload", "joiner", "notary", "spark_join", "deploy")
_REQUIREMENTS: Final = {"notary": "worker.txt", "notary-spark": "spark.txt"}
# A fixed time makes the wheels reproducible: the first time that a zip file can have (1980).
_REPEATABLE: Final = {"SOURCE_DATE_EPOCH": "315532800"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name, by default the process's own; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m deploy.image", description="The container images of the notary.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("fetch", help="for tests: install Debian's buildah, and make a base of Debian's packages")
    building = commands.add_parser("build", help="build the images")
    building.add_argument("--base", required=True, metavar="IMAGE", help="the base image, best with its digest")
    building.add_argument("--image", choices=EXTRAS, help="one image alone (default: both)")
    building.add_argument("--builder", choices=BUILDERS, help=f"default: the first of {', '.join(BUILDERS)} that is installed")
    building.add_argument("options", nargs="*", metavar="OPTION", help="more options of the builder's `build`, after --")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "fetch":
            fetch()
        else:
            with tempfile.TemporaryDirectory(prefix="notary-image-") as folder:
                images = [chosen.image] if chosen.image else list(EXTRAS)
                builder = chosen.builder or next(filter(shutil.which, BUILDERS), None)
                if builder is None:
                    raise CannotRun(f"none of {', '.join(BUILDERS)} is installed: install one")
                make_context(Path(folder), images)
                build(Path(folder), images, chosen.base, builder, chosen.options)
    except (CannotRun, OSError) as problem:
        print(f"image: {problem}", file=sys.stderr)
        return COULD_NOT
    return DONE


def make_context(folder: Path, images: Iterable[str]) -> None:
    """Fill an empty folder with everything that the images need: wheels for this Python and platform. Raises CannotRun."""
    wheels = folder / "wheels"
    with tempfile.TemporaryDirectory(prefix="notary-wheels-") as making:
        tools, source = Path(making) / "tools", Path(making) / "source"
        _report("fetching and building wheels")
        # A new virtual environment: pip and setuptools here may have any version, but the ones that build wheels are pinned too.
        run([sys.executable, "-P", "-m", "venv", tools])
        python = tools / "bin/python"
        pip: list[str | Path] = [python, "-P", "-m", "pip", "--disable-pip-version-check"]
        pinned = ["--quiet", "--require-hashes", "--no-deps", "--requirement"]
        run([*pip, "install", *pinned, ROOT / "requirements/build.txt"])
        run([*pip, "download", *pinned, ROOT / "requirements/build.txt", "--dest", wheels])
        making_wheels = [*pip, "wheel", "--no-build-isolation", "--wheel-dir", wheels]
        for image in images:
            run([*making_wheels, *pinned, ROOT / "requirements" / _REQUIREMENTS[image]], environment=_REPEATABLE)
        for name in _SOURCE:
            copied = source / name
            copied.parent.mkdir(exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copied, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, copied)
        run([*making_wheels, "--quiet", "--no-deps", source], environment=_REPEATABLE)


def build(context: Path, images: Iterable[str], base: str, builder: str, options: Sequence[str] = ()) -> None:
    """Build images from a context. Raises CannotRun with the builder's output."""
    for image in images:
        _report(f"{builder} builds {image}")
        given = ["--build-arg", f"BASE={base}", "--build-arg", f"EXTRAS={EXTRAS[image]}"]
        run([builder, "build", "--file", CONTAINERFILE, *given, "--tag", image, *options, context])


def fetch() -> Path:
    """Return a base image: a tar file of Debian packages. Installs buildah and mmdebstrap, which makes the base. Raises CannotRun."""
    if missing := [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]:
        install_debian(*missing)
    home = cache_folder() / "image"
    home.mkdir(parents=True, exist_ok=True)
    base = home / f"{'-'.join((DEBIAN, *PACKAGES))}.tar"
    with locked_file(home / "fetch.lock"):
        if not base.exists():
            _report(f"making a base of Debian {DEBIAN}")
            making = home / f"making-{base.name}"
            fast = "--dpkgopt=force-unsafe-io"  # no fsync: after a crash the base is made again
            run(["mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(PACKAGES)}", fast, DEBIAN, making])
            move_into_place(making, base)
    return base


def _report(what: str) -> None:
    print(f"image: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
