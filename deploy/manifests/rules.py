"""Extracts the Prometheus rules from manifests, and checks them with promtool."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml

from deploy.commands import run
from deploy.local.errors import CannotRun
from deploy.manifests.render import Manifest
from deploy.manifests.tools import Tools


def rules_of(manifests: Iterable[Manifest]) -> str:
    """Return the rule groups of all PrometheusRules, as a rules file for Prometheus."""
    groups = [group for each in manifests if each["kind"] == "PrometheusRule" for group in each["spec"]["groups"]]
    return str(yaml.safe_dump({"groups": groups}))


def check_rules(tools: Tools, rules: str) -> list[str]:
    """Return promtool's report as a list of one text if a rules file is wrong, else an empty list."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yml"
        file.write_text(rules)
        try:
            run([tools.promtool, "check", "rules", file])
        except CannotRun as problem:
            return [str(problem)]
    return []
