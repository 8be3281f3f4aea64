"""Receipts and the tree over HTTP: checked with the verifier, the tiles read as a monitor of C2SP tlog-tiles would."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import httpx
import pytest

from notary.receipts import proof_of
from notary.tree import View, view_at
from notary.tree.paths import format_tile_path
from notary.verify import Checkpoint, verify_checkpoint, verify_receipt
from tests.notary.http.asking import Asking
from tests.notary.party import Bank, fresh_hash, fresh_state, spend, transaction_id


def latest(asking: Asking) -> Checkpoint:
    """The checkpoint, signed by the key that /v1/notary tells."""
    return verify_checkpoint(asking.get("/checkpoint").content, [asking.verifier_key])


def get_tile(asking: Asking, path: str) -> httpx.Response:
    """A tile: its path is more than one segment, which OpenAPI has no word for."""
    return asking.http.get(f"/{path}")


def grow(asking: Asking, bank: Bank, least: int) -> int:
    """At least so many decisions; how many there are."""
    while (size := latest(asking).size) < least:
        asking.decide(bank, *[spend() for _ in range(min(least - size, 100))])
    return size


def test_a_submission_is_answered_with_receipts(asking: Asking, bank: Bank) -> None:
    """Each decision, the refusal too, comes with a receipt that proves it; all of one answer under one checkpoint."""
    state = fresh_state()
    decisions = asking.post(bank.body(spend(state), spend(state))).json()["decisions"]
    notes = set()
    for decision in decisions:
        receipt = decision.pop("receipt")
        verify_receipt(receipt, decision, [asking.verifier_key])
        notes.add(proof_of(receipt).checkpoint)
    assert [decision["outcome"] for decision in decisions] == ["committed", "rejected"]
    assert len(notes) == 1


def test_receipts_can_be_left_out(asking: Asking, bank: Bank) -> None:
    """`?receipts=false` leaves the member out; `true` and other names in the query change nothing; the last of two counts."""
    body = bank.body(spend())
    for query, with_receipt in (("receipts=false", False), ("receipts=true", True), ("a=b", True), ("receipts=true&receipts=false", False)):
        answer = asking.ask("POST", f"/v1/submissions?{query}", content=body, headers={"content-type": "application/json"})
        assert ("receipt" in answer.json()["decisions"][0]) is with_receipt


@pytest.mark.parametrize("query", ["receipts=", "receipts=no", "receipts=False", "receipts=%FF", "&".join(["a=1"] * 200)])
def test_a_query_that_is_none_is_malformed(asking: Asking, bank: Bank, query: str) -> None:
    """What is neither true nor false is refused, before anything is taken in."""
    request = spend()
    answer = asking.ask("POST", f"/v1/submissions?{query}", content=bank.body(request), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")
    assert asking.get(f"/v1/transactions/{transaction_id(request)}").status_code == 404


def test_a_receipt_is_had_again(asking: Asking, bank: Bank) -> None:
    """GET gives a receipt of the same decision, under the latest checkpoint; no decision, no receipt."""
    (decision,) = asking.decide(bank, spend())
    grow(asking, bank, decision["position"] + 2)
    answer = asking.get(f"/v1/transactions/{decision['transaction_id']}/receipt")
    assert answer.headers["content-type"].startswith("text/plain")
    assert verify_receipt(answer.content, decision, [asking.verifier_key]) == latest(asking)
    assert asking.get(f"/v1/transactions/{fresh_hash()}/receipt").json()["type"] == "/problems/not-found"
    assert asking.get("/v1/transactions/xyz/receipt").status_code == 400


def test_both_addresses_give_the_checkpoint(asking: Asking, bank: Bank) -> None:
    """/v1/checkpoint and /checkpoint give the same bytes, and nobody keeps them."""
    asking.decide(bank, spend())
    one, other = asking.get("/checkpoint"), asking.get("/v1/checkpoint")
    assert one.content == other.content
    assert one.headers["cache-control"] == "no-cache"


def test_a_monitor_rebuilds_the_root_from_entries_and_from_tiles(asking: Asking, bank: Bank) -> None:
    """The leaves hash to the tiles of level 0, and all tiles together to the signed root."""
    size = grow(asking, bank, 300)
    checkpoint = latest(asking)

    def read(level: int, index: int) -> bytes:
        width = min(256, (checkpoint.size >> 8 * level) - 256 * index)
        answer = get_tile(asking, format_tile_path(level, index, width))
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"] == "application/octet-stream"
        assert len(answer.content) == 32 * width
        return answer.content

    view: View = view_at(checkpoint.size, read)
    assert view.root == checkpoint.root
    for index in range((size + 255) // 256):
        width = min(256, checkpoint.size - 256 * index)
        bundle = get_tile(asking, format_tile_path(None, index, width)).content
        hashes = []
        while bundle:
            length = int.from_bytes(bundle[:2], "big")
            assert length == 104
            hashes.append(sha256(b"\0" + bundle[2 : 2 + length]).digest())
            bundle = bundle[2 + length :]
        assert b"".join(hashes) == read(0, index)


def test_a_partial_tile_stays_when_the_tile_has_grown(asking: Asking, bank: Bank) -> None:
    """Whoever asks for fewer hashes than there are by now gets the same bytes as before."""
    grow(asking, bank, 260)
    full = get_tile(asking, "tile/0/000").content
    assert get_tile(asking, "tile/0/000.p/5").content == full[: 5 * 32]
    assert get_tile(asking, "tile/entries/000.p/2").content == get_tile(asking, "tile/entries/000").content[: 2 * 106]


@pytest.mark.parametrize(
    "path",
    [
        "tile/0/x999/999",
        "tile/0/x999/999.p/1",
        "tile/entries/x999/999",
        "tile/5/000",
        "tile/63/000.p/1",
        "tile/64/000",
        "tile/0/000.p/256",
        "tile/0/000.p/0",
        "tile/0/0",
        "tile/00/000",
        "tile/0/x000/000",
        "tile/0/000/",
        "tile/-1/000",
        "tile/entries/000.p/",
        "tile/" + "x999/" * 50 + "999",
        "tile/",
        "tile",
    ],
)
def test_tiles_that_are_none_are_not_found(asking: Asking, path: str) -> None:
    """What is not there yet, and what is no canonical path, is a 404 that nobody keeps."""
    answer = get_tile(asking, path)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert answer.headers["cache-control"] == "no-store"


def test_who_waits_hears_the_decision_when_it_is_made(asking: Asking, bank: Bank) -> None:
    """`?wait=` holds the answer until the transaction is decided here; of the receipt too."""
    request = spend()
    id_ = transaction_id(request)
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(httpx.get, f"{asking.http.base_url}/v1/transactions/{id_}{what}?wait=30", timeout=60) for what in ("", "/receipt")
        ]
        (decision,) = asking.decide(bank, request)
        found, receipt = [one.result() for one in waiting]
    assert found.json() == decision
    verify_receipt(receipt.content, decision, [asking.verifier_key])


def test_a_wait_that_runs_out_is_not_found(asking: Asking) -> None:
    """After the wait the answer is what it would have been: 404, with how far this worker is."""
    answer = asking.get(f"/v1/transactions/{fresh_hash()}?wait=1")
    assert answer.status_code == 404
    assert answer.json()["applied"] == latest(asking).size


@pytest.mark.parametrize("wait", ["", "x", "-1", "1.5", "1234567", "١"])
def test_a_wait_that_is_none_is_malformed(asking: Asking, wait: str) -> None:
    """Seconds are digits."""
    assert asking.http.get(f"/v1/transactions/{fresh_hash()}", params={"wait": wait}).status_code == 400


def test_what_is_told_after_an_answer_never_contradicts_it(asking: Asking, bank: Bank) -> None:
    """Right after an answer the same worker says the same of the transaction and of its states, and its checkpoint covers it."""
    for _ in range(20):
        state = fresh_state()
        (decision,) = asking.decide(bank, spend(state))
        assert asking.get(f"/v1/transactions/{decision['transaction_id']}").json() == decision
        assert asking.get(f"/v1/states/{state}").json()["position"] == decision["position"]
        assert latest(asking).size > decision["position"]
