"""TLS settings of a client with a private certificate authority, or with a client certificate."""

import ssl
from pathlib import Path

from notary.access import read_secret
from ordering.errors import ConfigurationError


def tls_context(
    ca_file: str | Path | None = None, cert_file: str | Path | None = None, key_file: str | Path | None = None
) -> ssl.SSLContext:
    """Returns the context that `AsyncClient` and `Client` take as `tls`.

    `ca_file`: PEM certificates of the authorities that issued the workers' certificates; they replace those that this machine trusts.
    `cert_file` and `key_file`: the client certificate and its key, PEM, the key without a password. The key may be in the certificate's
    file. The file with the key must not be open to other users. Raises `ConfigurationError`, which names the file.
    """
    if "" in (ca_file, cert_file, key_file):
        raise ConfigurationError("the name of a TLS file is empty: give the file, or leave the argument out")
    if key_file is not None and cert_file is None:
        raise ConfigurationError(f"the TLS key {key_file} is of no use without its certificate: give both")
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as problem:  # an `SSLError` is one
        why = problem.strerror if problem.filename or not isinstance(problem, ssl.SSLError) else str(problem)
        raise ConfigurationError(f"the CA file {ca_file} cannot be used: {why}. Give a file of PEM certificates") from None
    if cert_file is not None:
        read_secret(Path(key_file or cert_file), "the TLS key", "Give the PEM files of a certificate and its key")
        try:
            context.load_cert_chain(str(cert_file), None if key_file is None else str(key_file), lambda: b"")
        except (OSError, ValueError) as problem:
            files = f"{cert_file}" if key_file is None else f"{cert_file} with the key {key_file}"
            raise ConfigurationError(
                f"the certificate {files} cannot be used: {problem}. Give a PEM certificate, and the unencrypted PEM key it was issued for"
            ) from None
    return context
