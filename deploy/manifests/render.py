"""Rendering an overlay with kustomize, and the objects that come out."""

from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from deploy.commands import run
from deploy.manifests.tools import Tools

Manifest: TypeAlias = dict[str, Any]

KUBERNETES: Final = Path(__file__).parents[1] / "kubernetes"
OVERLAYS: Final = ("one-zone", "three-zones")


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """YAML as Kubernetes reads it: `=` is text. YAML 1.1 made it a type of its own, which nobody uses."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: str(node.value))


def documents(text: str) -> list[Any]:
    """Return the documents of a YAML text, without empty ones."""
    return [each for each in yaml.load_all(text, Loader=_Loader) if each]


def render(tools: Tools, overlay: Path) -> list[Manifest]:
    """Return the objects of an overlay's folder. Raises CannotRun with what kustomize says."""
    return documents(run([tools.kustomize, "build", overlay]))


def name_of(manifest: Manifest) -> str:
    """Kind and name of an object, to speak of it."""
    return f"{manifest.get('kind')}/{(manifest.get('metadata') or {}).get('name')}"
