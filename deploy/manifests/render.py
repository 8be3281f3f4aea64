"""Renders an overlay with kustomize, and parses its objects; extracts the Prometheus rules, and checks them with promtool."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from deploy.local.commands import run
from deploy.local.errors import CannotRun
from deploy.manifests.tools import Tools

Manifest: TypeAlias = dict[str, Any]

KUBERNETES: Final = Path(__file__).parents[1] / "kubernetes"
OVERLAYS: Final = ("one-zone", "three-zones")
"""The overlays of a notary that serves."""
MIRROR: Final = "mirror"
"""The overlay of a site with a mirror alone."""


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """Loads YAML as Kubernetes does: `=` is text. In YAML 1.1 it has a type of its own, which is not used in practice."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: str(node.value))


def documents(text: str) -> list[Any]:
    """Return the documents of a YAML text, without empty ones."""
    return [each for each in yaml.load_all(text, Loader=_Loader) if each]


def render(tools: Tools, overlay: Path) -> list[Manifest]:
    """Return the objects of an overlay's folder. Raises CannotRun with kustomize's output."""
    return documents(run([tools.kustomize, "build", overlay]))


def name_of(manifest: Manifest) -> str:
    """Return `KIND/NAME` of an object, for messages."""
    return f"{manifest.get('kind')}/{(manifest.get('metadata') or {}).get('name')}"


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
