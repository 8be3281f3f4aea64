"""The command line: `python -P -m deploy.render SITES.toml --to DIR`.

Exits with 0 if the files are written or unchanged, 1 if `--check` finds that some would change, and 2 on failure; stderr has the reason.
"""

import argparse
import sys
from pathlib import Path

from deploy.render.sites import SitesError, read_sites
from deploy.render.tree import render, write

DONE, WOULD_CHANGE, COULD_NOT = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name, by default the process's own; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m deploy.render", description="The files of all hosts, from one sites file.")
    parser.add_argument("sites", type=Path, metavar="SITES.toml")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="one folder for each host, and one for the operator")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 and the names of the files that would change")
    chosen = parser.parse_args(arguments)
    try:
        files = render(read_sites(chosen.sites))
        found = {path.relative_to(chosen.to).as_posix() for path in chosen.to.rglob("*") if path.is_file()}
        if chosen.check:
            changed = [path for path, text in files.items() if path not in found or (chosen.to / path).read_text() != text]
        else:
            changed = write(files, chosen.to)
    except OSError as problem:
        print(f"deploy.render: cannot write {problem.filename}: {problem.strerror}. Name with --to a folder that is yours", file=sys.stderr)
        return COULD_NOT
    except (SitesError, UnicodeDecodeError) as problem:
        print(f"deploy.render: {problem}", file=sys.stderr)
        return COULD_NOT
    for path in changed:
        print(path)
    # The folder of a host that was removed from the sites file stays: the operator has to check and remove it.
    for path in sorted(found - files.keys()):
        print(f"deploy.render: {chosen.to / path} is not made from {chosen.sites}: remove it if its host is gone", file=sys.stderr)
    return WOULD_CHANGE if chosen.check and changed else DONE


if __name__ == "__main__":
    sys.exit(main())
