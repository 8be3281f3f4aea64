"""Receipts and the tree over HTTP: verified with the verifier; the tiles are read as a monitor of C2SP tlog-tiles reads them."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import httpx
import pytest

from notary.receipts import proof_of
from notary.tree import TreeView, view_at
from notary.tree.paths import format_tile_path
from notary.verify import SignedCheckpoint, verify_checkpoint, verify_receipt
from tests.notary.http.checked_client import WITH_ACCEPTORS, CheckedClient
from tests.notary.party import Bank, fresh_hash, fresh_state, spend, transaction_id


def latest(client: CheckedClient) -> SignedCheckpoint:
    """Returns the checkpoint, verified by the key of /v1/notary."""
    return verify_checkpoint(client.get("/checkpoint").content, [client.verifier_key])


def get_tile(client: CheckedClient, path: str) -> httpx.Response:
    """Returns a tile; OpenAPI cannot describe its path of several segments."""
    return client.http.get(f"/{path}")


def grow(client: CheckedClient, bank: Bank, least: int) -> int:
    """Submit until there are at least that many decisions. Returns their number."""
    while (size := latest(client).size) < least:
        client.decide(bank, *[spend() for _ in range(min(least - size, 100))])
    return size


def test_a_submission_is_answered_with_receipts(client: CheckedClient, bank: Bank) -> None:
    """Each decision, also a rejection, has a receipt that proves it; all receipts of one answer share a checkpoint."""
    state = fresh_state()
    decisions = client.post(bank.body(spend(state), spend(state))).json()["decisions"]
    notes = set()
    for decision in decisions:
        receipt = decision.pop("receipt")
        verify_receipt(receipt, decision, [client.verifier_key])
        notes.add(proof_of(receipt).checkpoint)
    assert [decision["outcome"] for decision in decisions] == ["committed", "rejected"]
    assert len(notes) == 1


def test_receipts_can_be_left_out(client: CheckedClient, bank: Bank) -> None:
    """`?receipts=false` leaves the member out; `true` and unknown parameters change nothing; the last of two values counts."""
    body = bank.body(spend())
    for query, with_receipt in (("receipts=false", False), ("receipts=true", True), ("a=b", True), ("receipts=true&receipts=false", False)):
        answer = client.ask("POST", f"/v1/submissions?{query}", content=body, headers={"content-type": "application/json"})
        assert ("receipt" in answer.json()["decisions"][0]) is with_receipt


@WITH_ACCEPTORS
@pytest.mark.parametrize("query", ["receipts=", "receipts=no", "receipts=False", "receipts=%FF", "&".join(["a=1"] * 200)])
def test_a_query_that_is_none_is_malformed(client: CheckedClient, bank: Bank, query: str) -> None:
    """A value other than true and false is rejected before the submission is admitted."""
    request = spend()
    answer = client.ask("POST", f"/v1/submissions?{query}", content=bank.body(request), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")
    assert client.get(f"/v1/transactions/{transaction_id(request)}").status_code == 404


def test_a_receipt_is_had_again(client: CheckedClient, bank: Bank) -> None:
    """GET returns a receipt of the same decision under the latest checkpoint; without a decision there is no receipt."""
    (decision,) = client.decide(bank, spend())
    grow(client, bank, decision["position"] + 2)
    answer = client.get(f"/v1/transactions/{decision['transaction_id']}/receipt")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["cache-control"] == "no-cache", "the next one is under a later checkpoint"
    assert verify_receipt(answer.content, decision, [client.verifier_key]) == latest(client)
    assert client.get(f"/v1/transactions/{fresh_hash()}/receipt").json()["type"] == "/problems/not-found"
    assert client.get("/v1/transactions/xyz/receipt").status_code == 400


def test_both_addresses_give_the_checkpoint(client: CheckedClient, bank: Bank) -> None:
    """/v1/checkpoint and /checkpoint return the same bytes, with `Cache-Control: no-cache`."""
    client.decide(bank, spend())
    one, other = client.get("/checkpoint"), client.get("/v1/checkpoint")
    assert one.content == other.content
    assert one.headers["cache-control"] == "no-cache"


def test_a_monitor_rebuilds_the_root_from_entries_and_from_tiles(client: CheckedClient, bank: Bank) -> None:
    """The leaves hash to the tiles of level 0, and all tiles together to the signed root."""
    size = grow(client, bank, 300)
    checkpoint = latest(client)

    def read(level: int, index: int) -> bytes:
        width = min(256, (checkpoint.size >> 8 * level) - 256 * index)
        answer = get_tile(client, format_tile_path(level, index, width))
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"] == "application/octet-stream"
        assert len(answer.content) == 32 * width
        return answer.content

    view: TreeView = view_at(checkpoint.size, read)
    assert view.root == checkpoint.root
    for index in range((size + 255) // 256):
        width = min(256, checkpoint.size - 256 * index)
        answer = get_tile(client, format_tile_path(None, index, width))
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        bundle = answer.content
        hashes = []
        while bundle:
            length = int.from_bytes(bundle[:2], "big")
            assert length == 104
            hashes.append(sha256(b"\0" + bundle[2 : 2 + length]).digest())
            bundle = bundle[2 + length :]
        assert b"".join(hashes) == read(0, index)


def test_a_partial_tile_stays_when_the_tile_has_grown(client: CheckedClient, bank: Bank) -> None:
    """A request for fewer hashes than the tile has by now returns the same bytes as before."""
    grow(client, bank, 260)
    full = get_tile(client, "tile/0/000").content
    assert get_tile(client, "tile/0/000.p/5").content == full[: 5 * 32]
    assert get_tile(client, "tile/entries/000.p/2").content == get_tile(client, "tile/entries/000").content[: 2 * 106]


def test_a_tile_that_is_not_there_yet_says_how_far_the_worker_is(client: CheckedClient, bank: Bank) -> None:
    """As a transaction that is not decided does: a monitor sees whether this worker is behind another one."""
    client.decide(bank, spend())
    size = latest(client).size
    for path in (format_tile_path(0, size // 256, size % 256 + 1), "tile/entries/x999/999"):
        assert get_tile(client, path).json()["applied"] == size


@WITH_ACCEPTORS
@pytest.mark.parametrize(
    "path",
    [
        *("tile/0/x999/999", "tile/0/x999/999.p/1", "tile/entries/x999/999", "tile/5/000", "tile/63/000.p/1", "tile/64/000"),
        *("tile/0/000.p/256", "tile/0/000.p/0", "tile/0/0", "tile/00/000", "tile/0/x000/000", "tile/0/000/", "tile/-1/000"),
        *("tile/entries/000.p/", "tile/", "tile"),
        "tile/" + "x999/" * 50 + "999",
    ],
)
def test_tiles_that_are_none_are_not_found(client: CheckedClient, path: str) -> None:
    """A tile that does not exist yet, and a path that is not canonical, is a 404 that must not be cached."""
    answer = get_tile(client, path)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert answer.headers["cache-control"] == "no-store"


def test_who_waits_hears_the_decision_when_it_is_made(client: CheckedClient, bank: Bank) -> None:
    """`?wait=` (a long poll) holds the answer until the transaction is decided here, also for the receipt."""
    request = spend()
    id_ = transaction_id(request)
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(httpx.get, f"{client.http.base_url}/v1/transactions/{id_}{what}?wait=30", timeout=60) for what in ("", "/receipt")
        ]
        (decision,) = client.decide(bank, request)
        found, receipt = [one.result() for one in waiting]
    assert found.json() == decision
    verify_receipt(receipt.content, decision, [client.verifier_key])
    assert client.get(f"/v1/transactions/{id_}?wait=60").json() == decision, "at once: the client's own deadline is shorter"


def test_a_wait_that_runs_out_is_not_found(client: CheckedClient) -> None:
    """After the long poll's deadline the answer is a 404, with this worker's progress."""
    answer = client.get(f"/v1/transactions/{fresh_hash()}?wait=1")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert answer.json()["applied"] == latest(client).size


@WITH_ACCEPTORS
@pytest.mark.parametrize("wait", ["", "x", "-1", "1.5", "1234567", "١"])
def test_a_wait_that_is_none_is_malformed(client: CheckedClient, wait: str) -> None:
    """A wait that is not written in digits is malformed."""
    assert client.http.get(f"/v1/transactions/{fresh_hash()}", params={"wait": wait}).status_code == 400


def test_reads_after_an_answer_never_contradict_it(client: CheckedClient, bank: Bank) -> None:
    """Right after an answer the same worker returns the same transaction and states, and its checkpoint covers the decision."""
    for _ in range(20):
        state = fresh_state()
        (decision,) = client.decide(bank, spend(state))
        assert client.get(f"/v1/transactions/{decision['transaction_id']}").json() == decision
        assert client.get(f"/v1/states/{state}").json()["position"] == decision["position"]
        assert latest(client).size > decision["position"]
