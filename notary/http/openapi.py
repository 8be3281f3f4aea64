"""The OpenAPI 3.1 document of the service. Its examples and limits come from the code that enforces them."""

from functools import lru_cache
from typing import Any

import msgspec

from notary.decision import KINDS, REASONS
from notary.http.problems import NAMES
from notary.version import VERSION
from ordering.ids import INDEX_MAX
from payload import INPUTS_AND_REFERENCES_MAX, PARTY_BYTES_MAX, REQUESTS_MAX, SUBMISSION_BYTES_MAX, TIME_MAX_MS

_HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_MOST = str(INDEX_MAX)
# Shorter than the largest index, or as long and smaller at its first other digit, or the largest.
_INDEX = "|".join(
    ["0", f"[1-9][0-9]{{0,{len(_MOST) - 2}}}"]
    + [
        f"{_MOST[:at]}[{int(not at)}-{int(digit) - 1}][0-9]{{{len(_MOST) - at - 1}}}"
        for at, digit in enumerate(_MOST)
        if int(digit) > int(not at)
    ]
    + [_MOST]
)
_STATE = {"type": "string", "pattern": f"^[0-9a-f]{{64}}:({_INDEX})$", "description": f"`<transaction id>:<index>`, up to {_MOST}"}
_TIME = {"type": "integer", "minimum": -TIME_MAX_MS, "maximum": TIME_MAX_MS, "description": "ms since 1970-01-01 UTC"}
_TIME_OR_NULL = {**_TIME, "type": ["integer", "null"]}


def _object(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


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


_SCHEMAS = {
    "Request": _object(
        {
            "inputs": {"type": "array", "items": _STATE, "uniqueItems": True, "default": []},
            "references": {"type": "array", "items": _STATE, "uniqueItems": True, "default": []},
            "time_window": _object(
                {"from": _TIME_OR_NULL, "until": _TIME_OR_NULL},
                description="At least one end; from < until when it has both.",
                anyOf=[{"properties": {end: {"type": "integer"}}} for end in ("from", "until")],
            ),
            "content_hash": {**_HASH, "description": "stands for everything else in the transaction"},
        },
        ["content_hash"],
        description=f"At most {INPUTS_AND_REFERENCES_MAX} inputs and references; at least one input, reference or window.",
        anyOf=[
            *[{"properties": {states: {"minItems": 1}}, "required": [states]} for states in ("inputs", "references")],
            {"required": ["time_window"]},
        ],
    ),
    "Submission": _object(
        {
            "party": {"type": "string", "minLength": 1, "maxLength": PARTY_BYTES_MAX},
            "signature": {"type": "string", "contentEncoding": "base64", "description": "Ed25519, or ECDSA P-256 in DER"},
            "requests": {"type": "array", "items": _ref("Request"), "minItems": 1, "maxItems": REQUESTS_MAX, "description": "none twice"},
        },
        description=f"At most {SUBMISSION_BYTES_MAX} bytes.",
    ),
    "Decision": _object(
        {
            "transaction_id": _HASH,
            "position": {"type": "integer", "minimum": 0},
            "outcome": {"enum": ["committed", "rejected"]},
            "reason": {"enum": list(REASONS)},
            "conflicts": {
                "type": "array",
                "items": _object({"state": _STATE, "kind": {"enum": list(KINDS)}, "consumed_by": _HASH}),
            },
            "log_time": _TIME,
            "receipt": {"type": "string", "description": "C2SP tlog-proof@v1; only in the answer to a submission"},
        },
        ["transaction_id", "position", "outcome", "reason", "conflicts", "log_time"],
    ),
    "Consumed": _object({"state": _STATE, "consumed_by": {"type": ["string", "null"]}, "position": {"type": ["integer", "null"]}}),
    "Notary": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "origin": {"type": "string"},
            "verifier_key": {"type": "string", "description": "the one that signs now"},
            "keys": {
                "type": "array",
                "minItems": 1,
                "items": _object({"verifier_key": {"type": "string"}, "endorsement": {"type": ["string", "null"]}}),
                "description": "the key history, from the first key to the present one; each is endorsed by the one before it",
            },
            "software_version": {"type": "string"},
            "reads": {"enum": ["open", "parties"], "description": "who may read transactions, receipts, states and leaves"},
            "limits": {"type": "object"},
        },
        "required": ["name", "origin", "verifier_key", "keys", "software_version", "reads", "limits"],
    },
    "Problem": {
        "type": "object",
        "properties": {
            "type": {"enum": [f"/problems/{name}" for name in NAMES]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "applied": {"type": "integer", "description": "how many decisions this worker has, where that is why it knows of none"},
            "where": {"type": "string", "description": "the place in the body, such as requests[3].inputs[0]"},
        },
        "required": ["type", "title", "status", "detail"],
    },
}


def _path_parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_DEFAULT = {"default": _problem("any other refusal, such as a method that this address does not answer")}


def _get(
    operation: str, summary: str, answers: dict[str, Any], parameters: list[dict[str, Any]] | None = None, *, kept: bool = False
) -> dict[str, Any]:
    """`kept`: the operator may keep it for parties."""
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
        "200": _json(_object({"decisions": {"type": "array", "items": _ref("Decision")}}), "Every decision, in the order of the requests"),
        "202": {
            **_json(
                _object({"decisions": {"type": "array", "items": {"anyOf": [_ref("Decision"), {"type": "null"}]}}}),
                "The wait ran out: decisions given are final, the others unknown; the same again is safe",
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
    "schema": {"type": "integer", "minimum": 0, "maximum": 999_999, "default": 0},
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
            [_path_parameter("id", _HASH), _WAIT],
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
            [_path_parameter("id", _HASH), _WAIT],
            kept=True,
        ),
        "/v1/states/{ref}": _get(
            "state",
            "Who consumed a state",
            {"200": _json(_ref("Consumed"), "Consumed by whom, or null"), "400": _problem("malformed"), "503": _NOT_READY, **_KEPT},
            [_path_parameter("ref", _STATE)],
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
            "Whether submissions are taken",
            {"200": _text("ok"), "503": _text("a reason a line")},
            [{"name": "verbose", "in": "query", "allowEmptyValue": True, "schema": {"type": "string"}}],
        ),
        "/metrics": _get("metrics", "Prometheus text", {"200": _text("metrics")}),
        "/openapi.json": _get("openapi", "This document", {"200": _json({"type": "object"}, "OpenAPI 3.1")}),
    },
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {
            "certificate": {"type": "mutualTLS", "description": "of a trusted authority, for the key of a registered party"},
            "signatureInput": {"type": "apiKey", "in": "header", "name": "Signature-Input", "description": "RFC 9421: docs/http.md"},
            "signature": {"type": "apiKey", "in": "header", "name": "Signature", "description": "by the key of a registered party"},
        },
    },
}


@lru_cache(maxsize=1)
def document() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(_DOCUMENT)
