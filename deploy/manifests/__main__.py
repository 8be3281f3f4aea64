"""The command line: `python -P -m deploy.manifests fetch|check|render OVERLAY|dashboard`.

Exits with 0 on success, 1 if `check` finds a problem in the manifests, and 2 on failure; stderr has the reason.
"""

import argparse
import sys

import yaml

from deploy.local.errors import CannotRun
from deploy.manifests.dashboard import DASHBOARD, dashboard
from deploy.manifests.render import KUBERNETES, MIRROR, OVERLAYS, check_rules, render, rules_of
from deploy.manifests.schemas import KUBERNETES_VERSIONS, Schemas
from deploy.manifests.tools import Tools, fetch

DONE, NO, COULD_NOT = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name, by default the process's own; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m deploy.manifests", description="The Kubernetes manifests, rendered and checked.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("fetch", help="fetch and build the tools, once")
    commands.add_parser("check", help="render all overlays and compare every object with the schema of its kind")
    commands.add_parser("render", help="print an overlay's objects").add_argument("overlay", choices=(*OVERLAYS, MIRROR))
    commands.add_parser("dashboard", help="write the dashboard's JSON from its table")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "dashboard":
            DASHBOARD.write_text(dashboard())
            return DONE
        tools = fetch()
        if chosen.command == "render":
            print(yaml.safe_dump_all(render(tools, KUBERNETES / chosen.overlay), sort_keys=False), end="")
        if chosen.command == "check":
            return _check(tools)
    except CannotRun as problem:
        print(f"manifests: {problem}", file=sys.stderr)
        return COULD_NOT
    return DONE


def _check(tools: Tools) -> int:
    schemas = Schemas(tools.crds)
    wrong = 0
    for overlay in (*OVERLAYS, MIRROR):
        manifests = render(tools, KUBERNETES / overlay)
        problems = [problem for manifest in manifests for problem in schemas.problems(manifest)]
        problems += check_rules(tools, rules_of(manifests))
        for problem in problems:
            print(f"{overlay}: {problem}", file=sys.stderr)
        wrong += len(problems)
        print(f"{overlay}: {len(manifests)} objects, {len(problems)} problems (Kubernetes {' and '.join(KUBERNETES_VERSIONS)})")
    return NO if wrong else DONE


if __name__ == "__main__":
    sys.exit(main())
