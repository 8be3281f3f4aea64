"""The signature of a call that only reads: one profile of HTTP Message Signatures (RFC 9421), for clients and for the notary.

    Signature-Input: sig=("@method" "@path" "@query");created=1795276891;keyid="O%3DBank%20A";tag="O%3DNotary"
    Signature: sig=:<base64>:

`keyid` is the party's name and `tag` the notary's, percent-encoded, since RFC 9421's strings are ASCII. The signature covers:

    "@method": GET
    "@path": /v1/states/…
    "@query": ?
    "@signature-params": ("@method" "@path" "@query");created=…

This is our own code, since a library for the complete RFC is twenty times as long, and accepts more than one form.
docs/http.md (Access to reads) has the rules. Pure: the time is an argument.
"""

import re
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from ordering.errors import Malformed

COMPONENTS: Final = ("@method", "@path", "@query")
SIGNED_COMPONENTS: Final = " ".join([f'"{each}"' for each in COMPONENTS])

_LABEL = r"[a-z*][a-z0-9_.*-]{0,63}"
_INPUT = re.compile(
    rf'({_LABEL})=(\(("@[a-z]+"(?: "@[a-z]+")*)\)((?:;[a-z]+=(?:[0-9]{{1,15}}|"[\x20-\x21\x23-\x5b\x5d-\x7e]{{0,4096}}"))*))'
)
_PARAMETER = re.compile(r';([a-z]+)=([0-9]+|"[^"]*")')
_SIGNATURE = re.compile(rf"({_LABEL})=:([A-Za-z0-9+/]{{1,200}}={{0,2}}):")
_KNOWN: Final = {"created", "keyid", "tag", "expires", "nonce", "alg"}
_NUMBERS: Final = {"created", "expires"}


class SignedRead(msgspec.Struct, frozen=True):
    """The signature of a read, parsed but not verified."""

    party: str
    notary_name: str
    created_s: int
    expires_s: int | None
    algorithm: str | None
    signed_parameters: str
    components: tuple[str, ...]
    signature: bytes

    def message(self, method: str, path: str, query: str) -> bytes:
        """Returns the bytes that the signature of this call covers; path and query are as they stand in the request's first line."""
        return _message(method, path, query, self.components, self.signed_parameters)


def parameters_of(party: str, notary_name: str, created_s: int) -> str:
    """Returns the parameters of a signature, as `message_to_sign` and `signature_headers` take them."""
    return f'({SIGNED_COMPONENTS});created={created_s};keyid="{quote(party, safe="")}";tag="{quote(notary_name, safe="")}"'


def message_to_sign(method: str, path: str, query: str, parameters: str) -> bytes:
    """Returns the bytes that the party signs."""
    return _message(method, path, query, COMPONENTS, parameters)


def signature_headers(parameters: str, signature: bytes) -> dict[str, str]:
    """Returns the two headers of a signed call."""
    encoded = b2a_base64(signature, newline=False).decode()
    return {"Signature-Input": f"sig={parameters}", "Signature": f"sig=:{encoded}:"}


def read_signature(given: Iterable[tuple[bytes, bytes]]) -> SignedRead | None:
    """Returns the signature in these headers (lower-case names); None without one. Raises `Malformed` unless it is exactly one."""
    inputs: list[bytes] = []
    signatures: list[bytes] = []
    for name, value in given:
        if name == b"signature-input":
            inputs.append(value)
        elif name == b"signature":
            signatures.append(value)
    if not inputs and not signatures:
        return None
    if len(inputs) != 1 or len(signatures) != 1:
        raise Malformed(f"{len(inputs)} headers Signature-Input and {len(signatures)} Signature: send one of each")
    found = _INPUT.fullmatch(inputs[0].decode("latin-1"))
    signature = _SIGNATURE.fullmatch(signatures[0].decode("latin-1"))
    if found is None or signature is None or found[1] != signature[1]:
        raise Malformed("Signature-Input and Signature should have one signature each, with the same label, in the form of docs/http.md")
    components = tuple(found[3].replace('"', "").split(" "))
    if sorted(components) != sorted(COMPONENTS):
        raise Malformed(f"Signature-Input covers {found[3]}: sign {' '.join(COMPONENTS)}, each once, and nothing else")
    parameters = _PARAMETER.findall(found[4])
    values = dict(parameters)
    if len(values) != len(parameters) or not {"created", "keyid", "tag"} <= values.keys() <= _KNOWN:
        raise Malformed(f"Signature-Input has {', '.join([name for name, _ in parameters])}: give created, keyid and tag, each once")
    if any((value[0] != '"') != (name in _NUMBERS) for name, value in parameters):
        raise Malformed("created and expires are numbers, all other parameters are strings")
    try:
        party, notary_name = [unquote_to_bytes(values[name].strip('"')).decode() for name in ("keyid", "tag")]
        raw = a2b_base64(signature[2], strict_mode=True)
    except (UnicodeDecodeError, Error):
        raise Malformed("keyid and tag are names in percent-encoded UTF-8, and the signature is base64") from None
    expires = values.get("expires")
    algorithm = values["alg"].strip('"') if "alg" in values else None
    return SignedRead(
        party, notary_name, int(values["created"]), None if expires is None else int(expires), algorithm, found[2], components, raw
    )


def _message(method: str, path: str, query: str, components: tuple[str, ...], parameters: str) -> bytes:
    values = {"@method": method, "@path": path, "@query": f"?{query}"}
    lines = [f'"{each}": {values[each]}' for each in components]
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("latin-1")
