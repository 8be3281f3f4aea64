"""Reads with `[http] reads = "parties"`, at real workers over TLS. Signatures are made by hand, from docs/http.md alone."""

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from notary.client import Client, Rejected, Signer, tls_context
from tests.notary.certificates import Authority
from tests.notary.http.checked_client import JSON, WITH_ACCEPTORS, CheckedClient, check_answer
from tests.notary.party import NOTARY, Bank, fresh_hash, fresh_state, spend
from tests.notary.process import NotaryDirectory, NotaryProcess

OTHER = Bank("O=Bänk B, L=Zürich", p256=True)
STRANGER = Bank("O=Stranger")
PATHS = ("/v1/transactions/{id}", "/v1/transactions/{id}/receipt", "/v1/states/{state}", "/tile/entries/000.p/{size}")
OPEN = ("/v1/notary", "/checkpoint", "/v1/checkpoint", "/tile/0/000.p/{size}", "/openapi.json", "/livez")


class Kept:
    """A worker whose decisions only parties may read, one decision of it, and its certificate authorities."""

    def __init__(self, directory: NotaryDirectory, process: NotaryProcess, bank: Bank) -> None:
        self.directory, self.process, self.bank = directory, process, bank
        self.ca_file = directory.path / "server-ca.pem"
        self.clients = Authority("Clients")
        self.http = self.client()
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()
        [decision] = self.submit(spend(f"{fresh_hash()}:0"))
        self.names = {"id": decision["transaction_id"], "state": f"{fresh_hash()}:0", "size": "1"}

    def client(self, *files: Any) -> httpx.Client:
        """Returns a client that shows this certificate."""
        return httpx.Client(base_url=self.process.url, verify=tls_context(self.ca_file, *files), trust_env=False, timeout=30)

    def submit(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns decisions with receipts: the signature of a submission shows its party."""
        answer = self.http.post("/v1/submissions", content=self.bank.body(*requests), headers=JSON)
        assert answer.status_code == 200, answer.text
        decisions: list[dict[str, Any]] = answer.json()["decisions"]
        assert all(decision["receipt"] for decision in decisions)
        return decisions

    def get(self, path: str, headers: Any = None, method: str = "GET", http: httpx.Client | None = None) -> int:
        """Returns the status of a call, whose answer must keep to the document."""
        answer = (http or self.http).request(method, path, headers=headers)
        if method == "GET" and not (answer.status_code == 200 and path.startswith("/tile/")):
            check_answer(self.document, method, unquote(path), answer)
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"] == f'Signature realm="{quote(NOTARY, safe="")}"'
            assert answer.headers["accept-signature"].startswith('sig=("@method" "@path" "@query");created;keyid;tag="')
            assert answer.headers["cache-control"] == "no-store"
            assert method == "HEAD" or answer.json()["type"] == "/problems/not-a-party"
            assert method == "HEAD" or answer.json()["detail"].count("sign the call") == 1
        return answer.status_code


def signed(
    path: str,
    bank: Bank,
    *,
    at_s: float = 0,
    party: str = "",
    notary: str = NOTARY,
    method: str = "GET",
    more: str = "",
    label: str = "sig",
    now_s: float | None = None,
    form: Callable[[bytes], bytes] | None = None,
) -> dict[str, str]:
    """Returns the headers of a call that is signed `at_s` seconds from now; `form` makes the signature from the key's own form."""
    path, _, query = path.partition("?")
    created_s = int((time.time() if now_s is None else now_s) + at_s)
    parameters = f'("@method" "@path" "@query");created={created_s};keyid="{quote(party or bank.name, safe="")}"'
    parameters += f';tag="{quote(notary, safe="")}"{more}'
    signature = bank.sign(f'"@method": {method}\n"@path": {path}\n"@query": ?{query}\n"@signature-params": {parameters}'.encode())
    signature = (form or (two_numbers if isinstance(bank.key, EllipticCurvePrivateKey) else bytes))(signature)
    return {"Signature-Input": f"{label}={parameters}", "Signature": f"{label}=:{base64.b64encode(signature).decode()}:"}


def two_numbers(der: bytes) -> bytes:
    """Returns the two numbers of a signature, as RFC 9421 writes them."""
    return b"".join([number.to_bytes(32, "big") for number in decode_dss_signature(der)])


@pytest.fixture(scope="module")
def kept(acceptors: int, tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> Iterator[Kept]:
    """One worker for all tests of this file."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("kept") / "notary")
    for party in (bank, OTHER):
        directory.register(party)
    authority, clients = Authority(), Authority("Clients")
    authority.put(directory.path / "server-ca.pem")
    clients.put(directory.path / "client-ca.pem")
    authority.server().put(directory.path, "server")
    settings = {
        "HTTP_READS": "parties",
        "HTTP_ACCEPTOR_PROCESSES": acceptors,
        "HTTP_TLS_CERT_FILE": "server.pem",
        "HTTP_TLS_KEY_FILE": "server-key.pem",
        "HTTP_TLS_CLIENT_CA_FILE": "client-ca.pem",
        "HTTP_TLS_CLIENT_CERT": "optional",
    }
    with NotaryProcess.start(directory.config, settings=settings) as process:
        kept = Kept(directory, process, bank)
        kept.clients = clients
        yield kept
        kept.http.close()
        assert process.stop() == 0


@pytest.fixture(params=PATHS, ids=["transaction", "receipt", "state", "entries"])
def path(request: pytest.FixtureRequest, kept: Kept) -> str:
    """Each path that only parties may read."""
    template: str = request.param
    return template.format(**kept.names)


@pytest.mark.seconds
def test_what_shows_no_decision_is_open(kept: Kept) -> None:
    """Hashes, checkpoints and the notary's own facts need no key; the notary states that the rest is for parties."""
    for template in OPEN:
        assert kept.get(template.format(**kept.names)) == 200, template
    assert kept.http.get("/v1/notary").json()["reads"] == "parties"


REJECTED: dict[str, Callable[[str, Bank], Any]] = {
    "no key": lambda path, bank: None,
    "another party's key": lambda path, bank: signed(path, OTHER, party=bank.name),
    "a key of the other kind": lambda path, bank: signed(path, bank, party=OTHER.name),
    "an unknown party": lambda path, bank: signed(path, STRANGER),
    "too old": lambda path, bank: signed(path, bank, at_s=-400),
    "too old, and valid for longer": lambda path, bank: signed(path, bank, at_s=-400, more=f";expires={2**40}"),
    "too early": lambda path, bank: signed(path, bank, at_s=400),
    "expired": lambda path, bank: signed(path, bank, at_s=-20, more=f";expires={int(time.time()) - 10}"),
    "for another notary": lambda path, bank: signed(path, bank, notary="O=Elsewhere"),
    "of another path": lambda path, bank: signed("/v1/transactions/" + "ab" * 32, bank),
    "of another query": lambda path, bank: signed(path + "?wait=1", bank),
    "of another method": lambda path, bank: signed(path, bank, method="POST"),
    "another algorithm": lambda path, bank: signed(path, bank, more=';alg="ecdsa-p256-sha256"'),
    "an unknown parameter": lambda path, bank: signed(path, bank, more=";x=1"),
    "created twice": lambda path, bank: signed(path, bank, more=f";created={int(time.time())}"),
    "signed with fewer components": lambda path, bank: {name: value.replace(' "@query"', "") for name, value in signed(path, bank).items()},
    "labels differ": lambda path, bank: signed(path, bank) | {"Signature": signed(path, bank, label="other")["Signature"]},
    "the input alone": lambda path, bank: {"Signature-Input": signed(path, bank)["Signature-Input"]},
    "the signature alone": lambda path, bank: {"Signature": signed(path, bank)["Signature"]},
    "no base64": lambda path, bank: signed(path, bank) | {"Signature": "sig=:A:"},
    "a signature twice": lambda path, bank: [*signed(path, bank).items(), *signed(path, bank).items()],
    "two in one header": lambda path, bank: {name: f"{value}, {value}" for name, value in signed(path, bank).items()},
    "an input twice": lambda path, bank: [*signed(path, bank).items(), ("Signature-Input", signed(path, STRANGER)["Signature-Input"])],
}


@WITH_ACCEPTORS
@pytest.mark.seconds
@pytest.mark.parametrize("why", REJECTED)
def test_who_shows_no_key_of_a_party_is_rejected(kept: Kept, path: str, why: str) -> None:
    """401, which says what to do; nothing of what was asked for is in it."""
    assert kept.get(path, REJECTED[why](path, kept.bank)) == 401


@pytest.mark.seconds
@pytest.mark.parametrize("more", ["", ';nonce="abc"', f";expires={2**40}"])
def test_a_party_that_signs_may_read(kept: Kept, path: str, more: str) -> None:
    """With either kind of key, an old and a new clock, any parameter that RFC 9421 has; and a proxy may not keep the answer."""
    for bank, alg in ((kept.bank, "ed25519"), (OTHER, "ecdsa-p256-sha256")):
        for at_s in (-200, 0, 200):
            assert kept.get(path, signed(path, bank, at_s=at_s, more=f'{more};alg="{alg}"')) == 200
    answer = kept.http.get(path, headers=signed(path, kept.bank))
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.seconds
def test_a_signature_counts_for_what_it_signs(kept: Kept, path: str) -> None:
    """Twice for the same call, which changes nothing; for HEAD by a signature of HEAD; with a query by one of that query."""
    headers = signed(path, kept.bank)
    assert [kept.get(path, headers), kept.get(path, headers)] == [200, 200]
    assert kept.get(path, headers, "HEAD") == 401
    assert kept.get(path, signed(path, kept.bank, method="HEAD"), "HEAD") == 200
    assert kept.get(path + "?wait=0", signed(path + "?wait=0", kept.bank)) == 200
    # As it stands in the call's first line: the same address in other letters is signed in those.
    encoded = path.replace("/v1/", "/%761/").replace("/tile/entries", "/tile/%65ntries")
    assert kept.get(encoded) == 401
    assert kept.get(encoded, headers) == 401
    assert kept.get(encoded, signed(encoded, kept.bank)) == 200


@pytest.mark.seconds
def test_a_certificate_with_a_partys_key_may_read(kept: Kept, path: str) -> None:
    """A certificate counts by its key, under any name; one of a trusted authority for another key is rejected, as is a wrong signature."""
    folder = kept.directory.path
    for number, (key, status) in enumerate([(kept.bank.key, 200), (OTHER.key, 200), (STRANGER.key, 401), (None, 401)]):
        files = kept.clients.client(kept.bank.name, key=key).put(folder, f"client-{number}")
        with kept.client(*files) as http:
            assert kept.get(path, http=http) == status
            assert kept.get(path, signed(path, kept.bank), http=http) == 200
            assert kept.get(path, signed(path, kept.bank, at_s=-400), http=http) == 401


@pytest.mark.seconds
def test_a_certificate_of_nobody_trusted_gets_no_connection(kept: Kept, path: str) -> None:
    """A certificate of an unknown authority gets no connection, even with a party's key in it."""
    files = Authority("Nobody").client(kept.bank.name, key=kept.bank.key).put(kept.directory.path, "nobody")
    with kept.client(*files) as http, pytest.raises(httpx.TransportError):
        http.get(path)


@pytest.mark.seconds
def test_unknown_addresses_and_methods_are_answered_as_ever(kept: Kept) -> None:
    """An unknown address is a 404 to everybody, and a wrong method a 405."""
    assert kept.get("/v1/nothing") == 404
    assert kept.get("/tile/entriesx/000") == 404
    assert kept.http.delete(f"/v1/transactions/{kept.names['id']}").status_code == 405


@pytest.mark.seconds
def test_our_client_signs(kept: Kept) -> None:
    """With a party's key our client reads decisions, receipts and states; without one its error says what to do."""
    tls, urls = tls_context(kept.ca_file), [kept.process.url]
    key = kept.http.get("/v1/notary").json()["verifier_key"]
    for bank in (kept.bank, OTHER):
        with Client(urls, bank.name, Signer.from_pem(bank.private_pem), tls=tls, verifier_keys=key) as client:
            found = client.transaction(kept.names["id"])
            assert found is not None
            assert found.receipt
            assert client.state(kept.names["state"]).consumed_by is None
    with Client(urls, tls=tls, verifier_keys=key) as client, pytest.raises(Rejected, match="sign the call") as rejected:
        client.state(kept.names["state"])
    assert rejected.value.status == 401


def test_everybody_may_read_by_default(client: CheckedClient, bank: Bank) -> None:
    """Without the setting nobody needs a key."""
    [decision] = client.decide(bank, spend())
    assert client.get(f"/v1/transactions/{decision['transaction_id']}").status_code == 200
    assert client.get("/v1/notary").json()["reads"] == "open"


@pytest.mark.parametrize("path", ["/v1/states/{state}", "/v1/notary", "/readyz", "/metrics"])
def test_an_answer_that_changes_is_not_kept_by_caches(client: CheckedClient, path: str) -> None:
    """A 200 without `Cache-Control` may be kept by any cache for a time of its own choice, as the state's null would be."""
    answer = client.get(path.format(state=fresh_state()))
    assert answer.status_code == 200
    assert answer.headers.get("cache-control") in ("no-cache", "no-store")
