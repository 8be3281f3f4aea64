"""deploy.pki: a certificate authority for a trial, a test or a small installation, in a folder.

Every private key is in a file of mode 600 from its first byte on, and every file appears complete. The folder `issued` keeps every
certificate that was ever issued, so that each can be revoked.

    python -P -m deploy.pki PKI sites SITES.toml             everything that a sites file names (see deploy/sites)
    python -P -m deploy.pki PKI issue bank                   one more, for a client
    python -P -m deploy.pki PKI renew broker-1               a new key and certificate with the same names
    python -P -m deploy.pki PKI revoke archive               revokes all its certificates

| file | content |
|---|---|
| `ca-key.pem` | the authority's private key. No server needs it: keep it off their machines |
| `ca.pem` | the authority's certificate, the trust store of all servers and clients |
| `crl.pem` | the revocation list |
| `NAME/keystore.pem` | private key and certificate in one file, for Kafka's PEM key stores |
| `NAME/key.pem`, `NAME/cert.pem` | the same in two files, for the notary's `[log]` settings |
| `issued/SERIAL.pem` | every certificate |

Keys are on the curve P-256, private keys PKCS #8 without a password. An organization with its own certificate authority uses that instead:
the rest of `deploy` depends only on the names of the certificates.
"""

from deploy.pki.authority import Authority, PkiError

__all__ = ["Authority", "PkiError"]
