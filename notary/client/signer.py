"""A party's private key: Ed25519, or ECDSA P-256 with SHA-256 (docs/formats.md, Submission)."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from notary.access import read_secret
from ordering.errors import ConfigurationError
from payload.signed_read import message_to_sign, parameters_of, signature_headers

_ED25519_BYTES: Final = 64
_MAKE_ONE: Final = "make one with `openssl genpkey -algorithm ed25519 -out FILE`"


class Signer:
    """Signs messages for a party. `sign` returns Ed25519's 64 bytes, or an ECDSA P-256 signature in DER.

    Create it from a PEM key (`from_file`, `from_pem`), or from any signing function, such as a hardware module's.
    """

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        self.sign = sign

    def sign_read(self, party: str, notary_name: str, path: str, now_s: int) -> dict[str, str]:
        """Returns the headers that prove to a notary that the party makes this GET (docs/http.md, Access to reads)."""
        path, _, query = path.partition("?")
        parameters = parameters_of(party, notary_name, now_s)
        signature = self.sign(message_to_sign("GET", path, query, parameters))
        if len(signature) != _ED25519_BYTES:  # then it is DER, where only one P-256 signature in 2^40 has this length
            signature = b"".join([number.to_bytes(32, "big") for number in decode_dss_signature(signature)])
        return signature_headers(parameters, signature)

    @classmethod
    def from_pem(cls, pem: bytes, password: bytes | None = None, source: str = "the key") -> "Signer":
        """Returns the signer of a PEM private key. Raises `ConfigurationError`, naming `source`, for a key that no notary accepts."""
        try:
            key = load_pem_private_key(pem, password)
        except TypeError:
            if password is None:
                raise ConfigurationError(
                    f"{source} is encrypted; give its password, or write it without one: `openssl pkey -in FILE -out FILE`"
                ) from None
            raise ConfigurationError(f"{source} is not encrypted; leave the password out") from None
        except (ValueError, UnsupportedAlgorithm) as problem:
            what = "is not a PEM private key" if password is None else "is not a PEM private key, or the password is another"
            raise ConfigurationError(f"{source} {what} ({problem}); {_MAKE_ONE}") from None
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return cls(key.sign)
        if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
            return cls(lambda message: key.sign(message, ec.ECDSA(hashes.SHA256())))
        kind = f"on the curve {key.curve.name}" if isinstance(key, ec.EllipticCurvePrivateKey) else f"of type {type(key).__name__}"
        raise ConfigurationError(f"{source} is a key {kind}; notaries take Ed25519 and ECDSA P-256: {_MAKE_ONE}")

    @classmethod
    def from_file(cls, path: str | Path, password: bytes | None = None) -> "Signer":
        """Returns the signer of a PEM file. Raises `ConfigurationError` if the file cannot be read or used, or is open to other users."""
        pem = read_secret(Path(path), "the key", "Give the private key's PEM file")
        return cls.from_pem(pem, password, f"the key {path}")
