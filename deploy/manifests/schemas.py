"""The strict schema of each kind: built-in ones by kubernetes-validate, custom ones from their definitions.

The OpenAPI schema of a CustomResourceDefinition allows unknown fields. An API server drops them, or rejects them with
`fieldValidation=Strict`. This module rejects them: a schema that lists properties allows no others, unless it says so.
"""

from pathlib import Path
from typing import Any, Final

import kubernetes_validate
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from deploy.manifests.render import Manifest, documents, name_of

KUBERNETES_VERSIONS: Final = ("1.30", "1.37")
"""The oldest version that Strimzi supports, and the newest that kubernetes-validate has schemas for."""

_METADATA: Final = {"$ref": "/api/_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}


class Schemas:
    """Checks objects of all built-in kinds, and of the custom kinds whose definitions it was given."""

    def __init__(self, crds: Path) -> None:
        """Read the CustomResourceDefinitions in a folder."""
        definitions = schema_contents(f"kubernetes-json-schema/v{KUBERNETES_VERSIONS[-1]}.0-local-strict/_definitions.json", "")
        registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()
        self._custom: dict[tuple[str, str], Draft202012Validator] = {}
        for file in sorted(crds.glob("*.yaml")):
            for crd in documents(file.read_text()):
                spec = crd["spec"]
                for version in spec["versions"]:
                    if version["served"]:
                        schema: dict[str, Any] = {"$id": f"https://kubernetes.io/crd/{file.name}/{version['name']}"}
                        schema |= strict(version["schema"]["openAPIV3Schema"])
                        schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _METADATA}
                        kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                        self._custom[kind] = Draft202012Validator(schema, registry=registry)

    def problems(self, manifest: Manifest) -> list[str]:
        """Return a text for each problem of an object; for built-in kinds only the first for each Kubernetes version."""
        name = name_of(manifest)
        kind = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
        if (custom := self._custom.get(kind)) is not None:
            return [f"{name}: {error.json_path}: {error.message}" for error in custom.iter_errors(manifest)]
        found = []
        for version in KUBERNETES_VERSIONS:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                found.append(f"{name}: Kubernetes {version} has no kind {kind[1]} in {kind[0]}, and no definition that we have adds it")
            except kubernetes_validate.ValidationError as error:
                found.append(f"{name}: {'.'.join(map(str, error.path))}: {error.message} (Kubernetes {version})")
        return found


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI schema as a JSON schema that allows no field that it does not list.

    Logical keywords (`allOf`, `not` and so on) stay as they are: they repeat some of the properties, not all.
    """
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {name: strict(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        closed["items"] = strict(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = strict(schema["additionalProperties"])
    elif "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    if schema.get("nullable") and isinstance(closed.get("type"), str):
        closed["type"] = [closed["type"], "null"]
    closed.pop("default", None)
    return closed
