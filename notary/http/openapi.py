"""The OpenAPI 3.1 document of the service. Its schemas come from the structs that the service encodes and decodes, limits included."""

from functools import lru_cache
from typing import Any, Final

import msgspec

from notary.http.problems import Problem
from notary.http.query import WAIT_S_MAX
from notary.version import VERSION
from notary.wire import ConflictJson, DecisionJson, DecisionsJson, HistoricKey, NotaryJson, StateJson
from ordering.ids import HASH_SCHEMA, STATE_SCHEMA
from payload import INPUTS_AND_REFERENCES_MAX, SUBMISSION_BYTES_MAX
from payload.request import RequestJson, WindowJson
from payload.submission import SubmissionJson

_STRUCTS: Final = (
    *(SubmissionJson, RequestJson, WindowJson),
    *(DecisionsJson, DecisionJson, ConflictJson, StateJson, NotaryJson, HistoricKey),
    Problem,
)


def _schemas() -> dict[str, Any]:
    """Returns the schemas of the structs, by name, in a form that client generators understand."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
    schemas: dict[str, Any] = {}
    for struct in _STRUCTS:
        schema = components[struct.__name__]
        for field in msgspec.structs.fields(struct):
            if struct.__struct_config__.omit_defaults and field.default is None:
                _take_null_away(schema["properties"][field.encode_name])
        if not struct.__struct_config__.omit_defaults:
            schema["required"] = list(schema["properties"])
        schemas[_without_json(struct.__name__)] = _mended(schema)
    for name, owner, member in (("Outcome", "Decision", "outcome"), ("Reason", "Decision", "reason"), ("Kind", "Conflict", "kind")):
        _name_enumeration(schemas, name, owner, member)
    schemas["Submission"]["description"] = f"At most {SUBMISSION_BYTES_MAX} bytes."
    schemas["Request"] |= {
        "description": f"At most {INPUTS_AND_REFERENCES_MAX} inputs and references; at least one input, reference or window.",
        "minProperties": 2,
    }
    return schemas


def _without_json(text: str) -> str:
    return text.removesuffix("Json")


def _take_null_away(schema: dict[str, Any]) -> None:
    """Remove null from the schema of a member: it may be absent, but is never null."""
    (given,) = [each for each in schema.pop("anyOf") if each != {"type": "null"}]
    schema |= given


def _mended(schema: Any) -> Any:
    """Returns a schema of msgspec without the forms that client generators misread.

    They take an integer without a format for 32 bits, an enumeration without a type for any value, and a default for a required member.
    """
    if isinstance(schema, list):
        return [_mended(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _mended(value) for name, value in schema.items() if name != "default"}
    for name in {"$ref", "title"} & found.keys():
        if isinstance(found[name], str):
            found[name] = _without_json(found[name])
    if "enum" in found:
        found["type"] = "string"
    if found.get("type") == "integer":
        found.setdefault("format", "int64")
    either: list[dict[str, Any]] = found.get("anyOf", [])
    if len(either) == 2 and "type" in either[0] and "enum" not in either[0] and either[1] == {"type": "null"}:
        del found["anyOf"]
        found |= either[0] | {"type": [either[0]["type"], "null"]}
    return found


def _name_enumeration(schemas: dict[str, Any], name: str, owner: str, member: str) -> None:
    """Move the values of a member into a schema of their own.

    Client generators make a type of such a schema, and openapi-generator's Java accepts null in its place.
    """
    members = schemas[owner]["properties"]
    if "anyOf" in members[member]:
        schemas[name], null = members[member]["anyOf"]
        members[member] = {"anyOf": [_ref(name), null]}
    else:
        schemas[name], members[member] = members[member], _ref(name)


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _problem(description: str, *, retry: bool = False) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": description, "content": {"application/problem+json": {"schema": _ref("Problem")}}}
    if retry:
        answer["headers"] = {
            "Retry-After": {"description": "seconds", "schema": {"type": "integer"}},
            "Ticket": {"description": "to be brought back then, of quota-exceeded and overloaded", "schema": {"type": "string"}},
        }
    return answer


def _path_parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_DEFAULT = {"default": _problem("any other rejection, such as a method that this address does not answer")}


def _get(
    operation: str, summary: str, answers: dict[str, Any], parameters: list[dict[str, Any]] | None = None, *, kept: bool = False
) -> dict[str, Any]:
    """`kept`: the operator may restrict this call to parties."""
    about: dict[str, Any] = {"operationId": operation, "summary": summary, "responses": answers | _DEFAULT, "parameters": parameters or []}
    return {"get": about | ({"security": _SECURITY} if kept else {})}


_SUBMIT = {
    "operationId": "submit",
    "summary": "Have requests decided",
    "parameters": [
        {
            "name": "receipts",
            "in": "query",
            "schema": {"type": "boolean", "default": True},
            "description": "false: decisions without receipts",
        },
        {"name": "Prefer", "in": "header", "schema": {"type": "string"}, "description": "`wait=N`: seconds to wait (RFC 7240)"},
        {"name": "traceparent", "in": "header", "schema": {"type": "string"}, "description": "The client's span (W3C Trace Context)"},
    ],
    "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("Submission")}}},
    "responses": {
        "200": _json(_ref("Decisions"), "Every decision, in the order of the requests; none is null"),
        "202": {
            **_json(
                _ref("Decisions"),
                "The wait ran out: the decisions in it are final, the others unknown; sending the same again is safe",
            ),
            "headers": {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}},
        },
        "400": _problem("malformed: says which request and field"),
        "401": _problem("unknown-party"),
        "403": _problem("bad-signature"),
        "413": _problem("too-large"),
        "415": _problem("unsupported-media-type"),
        "429": _problem("quota-exceeded", retry=True),
        "503": _problem("overloaded or not-ready: surely not applied", retry=True),
        **_DEFAULT,
    },
}

_NOT_READY = _problem("not-ready", retry=True)
_KEPT: dict[str, Any] = {"401": _problem("not-a-party: the operator keeps this for parties (`reads` of /v1/notary)")}
_KEPT["401"]["headers"] = {
    "WWW-Authenticate": {"description": "`Signature`, and the notary as realm", "schema": {"type": "string"}},
    "Accept-Signature": {"description": "what to sign (RFC 9421)", "schema": {"type": "string"}},
}
_SECURITY: list[dict[str, list[str]]] = [{}, {"certificate": []}, {"signatureInput": [], "signature": []}]

_WAIT = {
    "name": "wait",
    "in": "query",
    "schema": {"type": "integer", "minimum": 0, "maximum": WAIT_S_MAX, "default": 0},
    "description": "seconds to wait for the decision if this worker has none yet",
}


def _bytes(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/octet-stream": {}}}


_TILE_ANSWERS = {"200": _bytes("It never changes"), "404": _problem("not there (yet), or no tile"), "503": _NOT_READY}

_DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Notary", "version": VERSION, "description": "No state is spent twice, and anyone can check it."},
    "paths": {
        "/v1/submissions": {"post": _SUBMIT},
        "/v1/transactions/{id}": _get(
            "transaction",
            "The decision of a transaction",
            {
                "200": _json(_ref("Decision"), "The decision"),
                "400": _problem("malformed"),
                "404": _problem("not decided here"),
                "503": _NOT_READY,
                **_KEPT,
            },
            [_path_parameter("id", HASH_SCHEMA), _WAIT],
            kept=True,
        ),
        "/v1/transactions/{id}/receipt": _get(
            "receipt",
            "The receipt of a transaction's decision, under the latest checkpoint",
            {
                "200": _text("C2SP tlog-proof@v1"),
                "400": _problem("malformed"),
                "404": _problem("not decided here"),
                "503": _NOT_READY,
                **_KEPT,
            },
            [_path_parameter("id", HASH_SCHEMA), _WAIT],
            kept=True,
        ),
        "/v1/states/{ref}": _get(
            "state",
            "Who consumed a state",
            {"200": _json(_ref("State"), "Consumed by whom, or null"), "400": _problem("malformed"), "503": _NOT_READY, **_KEPT},
            [_path_parameter("ref", STATE_SCHEMA)],
            kept=True,
        ),
        "/v1/checkpoint": _get("latest", "The latest checkpoint", {"200": _text("C2SP checkpoint, signed"), "503": _NOT_READY}),
        "/checkpoint": _get("checkpoint", "The same, where tlog-tiles wants it", {"200": _text("C2SP checkpoint"), "503": _NOT_READY}),
        "/tile/{level}/{tile}": _get(
            "tile",
            "Hashes of the tree (C2SP tlog-tiles)",
            _TILE_ANSWERS,
            [
                _path_parameter("level", {"type": "integer", "minimum": 0, "maximum": 63}),
                _path_parameter("tile", {"type": "string", "description": "`x001/x234/067`, then `.p/<width>` for a partial tile"}),
            ],
        ),
        "/tile/entries/{tile}": _get(
            "entries",
            "Leaves of the tree, each after its length in two bytes",
            {**_TILE_ANSWERS, **_KEPT},
            [_path_parameter("tile", {"type": "string", "description": "`x001/x234/067`, then `.p/<width>` for a partial bundle"})],
            kept=True,
        ),
        "/v1/notary": _get("notary", "Who this notary is", {"200": _json(_ref("Notary"), "Name, keys, limits"), "503": _NOT_READY}),
        "/livez": _get("livez", "Whether the process lives", {"200": _text("ok")}),
        "/readyz": _get(
            "readyz",
            "Readiness: 200 while submissions are admitted",
            {"200": _text("ok"), "503": _text("a reason a line")},
            [{"name": "verbose", "in": "query", "allowEmptyValue": True, "schema": {"type": "string"}}],
        ),
        "/metrics": _get("metrics", "Prometheus text", {"200": _text("metrics")}),
        "/openapi.json": _get("openapi", "This document", {"200": _json({"type": "object"}, "OpenAPI 3.1")}),
    },
    "components": {
        "schemas": _schemas(),
        "securitySchemes": {
            "certificate": {"type": "mutualTLS", "description": "of a trusted authority, for the key of a registered party"},
            "signatureInput": {"type": "apiKey", "in": "header", "name": "Signature-Input", "description": "RFC 9421: docs/http.md"},
            "signature": {"type": "apiKey", "in": "header", "name": "Signature", "description": "by the key of a registered party"},
        },
    },
}


@lru_cache(maxsize=1)
def document() -> bytes:
    """Returns the document as JSON."""
    return msgspec.json.encode(_DOCUMENT)
