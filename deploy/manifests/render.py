"""Renders an overlay with kustomize, and parses its objects."""

from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from deploy.commands import run
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
