"""Look-ups at a worker: decisions, states, receipts, and its tree as a public log (docs/http.md). No look-up waits or writes, and long ones
are done in pieces.

The tree is served as C2SP tlog-tiles requires, so that any monitor or witness can mirror and check it. A tile of a given width never
changes, not even a partial one, so caches may keep it. Only the checkpoint changes.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from notary.http.call import JSON, JSON_NOW, TEXT, Answer, Headers
from notary.http.problems import NotFound
from notary.tree import TILE_HEIGHT, TILE_WIDTH
from notary.tree.paths import TilePath, parse_tile_path
from notary.version import VERSION
from notary.wire import NotaryJson, StateJson, encode_answer, encode_in_pieces
from notary.worker import Worker
from ordering.ids import TransactionId, excerpt, parse_hash, parse_state
from ordering.pieces import Pieces
from ordering.records import FORMAT_VERSION
from payload import INPUTS_AND_REFERENCES_MAX, REQUESTS_MAX, SUBMISSION_BYTES_MAX

LookUp: TypeAlias = Callable[[Worker, str], Answer | Pieces[Answer]]

TRANSACTIONS: Final = "/v1/transactions/"
STATES: Final = "/v1/states/"
ENTRIES: Final = "/tile/entries/"
NOTARY: Final = "/v1/notary"
RECEIPT: Final = "/receipt"
IMMUTABLE: Final[Headers] = [(b"content-type", b"application/octet-stream"), (b"cache-control", b"public, max-age=31536000, immutable")]
TEXT_NOW: Final[Headers] = [*TEXT, (b"cache-control", b"no-cache")]


def asked_transaction(rest: str) -> bytes:
    """Returns the transaction id in `rest`, which follows `/v1/transactions/`. Raises `Malformed` if it is none."""
    return parse_hash(rest.removesuffix(RECEIPT), "transaction id")


def _transaction(worker: Worker, rest: str) -> Answer | Pieces[Answer]:
    transaction_id = asked_transaction(rest)
    position = worker.index.position(transaction_id)
    if position is None:
        id_ = rest.removesuffix(RECEIPT)
        applied = worker.index.position_next
        raise NotFound(f"transaction {id_} is not decided here: this worker has applied {applied} positions", applied)
    if rest.endswith(RECEIPT):
        return 200, TEXT_NOW, worker.issuer.receipt(position)
    return _decision(worker, transaction_id)


def _decision(worker: Worker, transaction_id: TransactionId) -> Pieces[Answer]:
    decision = yield from worker.index.decision_in_pieces(transaction_id)
    assert decision is not None, "what was decided stays decided"
    return 200, JSON, (yield from encode_in_pieces(decision))


def _state(worker: Worker, rest: str) -> Answer:
    consumed = worker.index.consumed(parse_state(rest, "state"))
    if consumed is None:
        return 200, JSON_NOW, encode_answer(StateJson(rest, None, None))
    return 200, JSON_NOW, encode_answer(StateJson(rest, consumed.by_hash.hex(), consumed.position))


def _checkpoint(worker: Worker, rest: str) -> Answer:
    return 200, TEXT_NOW, worker.issuer.checkpoint().encode()


def _tile(worker: Worker, rest: str) -> Answer | Pieces[Answer]:
    path = parse_tile_path(f"tile/{rest}")
    if path is None:
        raise NotFound(f"{excerpt(rest)} is no tile: <L>/<N>[.p/<W>] or entries/<N>[.p/<W>], with N as x001/x234/067")
    _check_exists(worker, path)
    if path.level is None:
        return _entries(worker, path)
    return 200, IMMUTABLE, worker.index.tile(path.level, path.index, path.width)


def _entries(worker: Worker, path: TilePath) -> Pieces[Answer]:
    """Answers with the leaves, each after its length in two bytes."""
    leaves = yield from worker.index.leaves_in_pieces(path.index * TILE_WIDTH, path.width)
    return 200, IMMUTABLE, b"".join([len(leaf).to_bytes(2, "big") + leaf for leaf in leaves])


def _check_exists(worker: Worker, path: TilePath) -> None:
    size = worker.index.tree.size
    width = (size >> (TILE_HEIGHT * (path.level or 0))) - path.index * TILE_WIDTH
    if width < path.width:
        raise NotFound(f"this worker has applied {size} positions: of that tile there are {max(0, width)} of {path.width}", size)


def _notary(worker: Worker, rest: str) -> Answer:
    limits = {
        "requests": REQUESTS_MAX,
        "submission_bytes": SUBMISSION_BYTES_MAX,
        "inputs_and_references": INPUTS_AND_REFERENCES_MAX,
        "wait_seconds": worker.config.http.wait_ms_max // 1000,
    }
    answer = NotaryJson(
        name=worker.config.name,
        origin=worker.config.origin,
        verifier_key=worker.receipt_key.verifier_key,
        keys=worker.receipt_key.history,
        software_version=VERSION,
        format_version=FORMAT_VERSION,
        worker=worker.config.worker.name,
        reads=worker.config.http.reads,
        limits=limits,
    )
    return 200, JSON_NOW, encode_answer(answer)


LOOK_UPS: Final[dict[str, LookUp]] = {
    TRANSACTIONS: _transaction,
    STATES: _state,
    "/v1/checkpoint": _checkpoint,
    NOTARY: _notary,
    "/checkpoint": _checkpoint,
    "/tile/": _tile,
}
"""The look-up of each path. A path that ends in a slash is a prefix, and the look-up gets the rest."""


def shows_decisions(path: str) -> bool:
    """Returns True if `[http] reads` may restrict this path to parties: its answer holds more than hashes."""
    return path.startswith((TRANSACTIONS, STATES, ENTRIES))
