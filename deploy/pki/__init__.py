"""deploy.pki: a certificate authority for a trial, a test or a small installation, in a folder.

The promise: every private key is in a file of mode 600 from its first byte on, every file appears complete, and a certificate that was
issued once is never forgotten: the folder `issued` keeps all of them, so that they can be revoked.

    python -P -m deploy.pki PKI sites SITES.toml             everything that a sites file names (see deploy/sites)
    python -P -m deploy.pki PKI issue bank --client          one more
    python -P -m deploy.pki PKI renew broker-1               a new key and certificate with the same names
    python -P -m deploy.pki PKI revoke archive               none of its certificates is good any more

| file | content |
|---|---|
| `ca-key.pem` | the authority's private key. No server needs it: keep it off their machines |
| `ca.pem` | the authority's certificate, the trust store of all |
| `crl.pem` | the revocation list |
| `NAME/keystore.pem` | private key and certificate in one file, as Kafka's PEM key stores want them |
| `NAME/key.pem`, `NAME/cert.pem` | the same in two, as the notary's `[log]` settings want them |
| `issued/SERIAL.pem` | every certificate |

Keys are on the curve P-256, private keys PKCS #8 without a password. Who has an authority of the house uses that instead: nothing here but
the names of the certificates matters to the rest of `deploy`.
"""

from deploy.pki.authority import Authority, PkiError

__all__ = ["Authority", "PkiError"]
