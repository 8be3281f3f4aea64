"""The stages of a worker's work, and the code of each.

Code is named by symbol, not by text: a renamed module or function is an error of imports and types, and a refactoring tool renames it here
too. New code in the notary counts for its package until it has a line here.
"""

from types import ModuleType
from typing import Any, Final

import aiokafka

import joiner.queue
import joiner.rate
import joiner.sender
import joiner.share
import notary.agreement
import notary.bodies
import notary.decide
import notary.decision
import notary.duty_cycle
import notary.gate
import notary.http
import notary.http.in_flight
import notary.index
import notary.index.tiles
import notary.metrics
import notary.parties
import notary.party_keys
import notary.quota
import notary.receipts
import notary.self_check
import notary.service
import notary.tickets
import notary.tree
import notary.wire
import notary.worker
import ordering.ids
import ordering.records
import payload.codec
import payload.partitions
import payload.submission

STAGES: Final = {
    "http": "connections, heads, bodies, answers on their way (notary.http)",
    "decode": "the JSON of a submission, its rules, its transaction ids",
    "verify": "the signature, and the steps around it",
    "look-up": "whether it is decided already: the index, asked before the log",
    "log": "batches, appending and reading them, the embedded log's thread included",
    "kafka client": "aiokafka, both ways",
    "join": "both topics in one order",
    "decode of others": "the same decoding, of requests that other workers admitted",
    "decide": "the decision function",
    "index": "RocksDB: looking up, writing",
    "tree": "leaves, hashes, tiles",
    "answer": "decisions and receipts as JSON",
    "event loop": "polling, reading sockets, switching tasks",
    "self-check": "metrics, roots and rows compared",
    "garbage collector": "Python's, in the main thread",
    "native threads": "RocksDB flushing and compacting; a tick of the kernel's clock more or less",
    "other": "code without a stage",
    "sampler": "the measurement itself; not the notary's",
}
"""In the order of a request's path."""

PARALLEL: Final = ("http", "decode", "verify", "look-up", "answer")
"""Done once, by the worker that admitted the request: more workers or acceptor processes divide this work."""
SERIAL: Final = ("join", "decode of others", "decide", "index", "tree")
"""Done by every worker for every request, in order: more processes do not make it faster."""

CODE: Final[dict[Any, str | None]] = {
    notary.http: "http",
    notary.duty_cycle: "http",
    notary.http.in_flight.InFlight._answer: "answer",
    notary.worker: None,
    notary.http.in_flight.InFlight._receipt: "answer",
    notary.service: None,
    notary.receipts: "answer",
    notary.decision: None,
    notary.wire: "answer",
    notary.gate: "verify",
    notary.bodies: "verify",
    notary.quota: "verify",
    notary.parties: "verify",
    notary.party_keys: "verify",
    notary.tickets: "verify",
    notary.decide: "decide",
    notary.index: "index",
    notary.index.tiles: "tree",
    notary.tree: "tree",
    notary.metrics: "self-check",
    notary.self_check: "self-check",
    notary.agreement: "self-check",
    notary: "other",
    joiner: "join",
    joiner.sender: "log",
    joiner.sender.Sender.resolve: "answer",
    joiner.sender.Sender._resolve_own: "answer",
    joiner.queue: "log",
    joiner.share: "log",
    joiner.rate: "log",
    joiner.queue.SubmissionQueue.answer: "answer",
    payload: "decode",
    payload.submission.signed_message: "verify",
    payload.codec.encode_batch: "log",
    payload.partitions: "log",
    ordering: "log",
    ordering.records: None,
    ordering.ids: None,
    aiokafka: "kafka client",
}
"""The stage of each package, module or function; the most specific entry counts. None: the code counts for its callers."""

CALLED_FROM: Final = (("decode", "join", "decode of others"), ("index", "http", "look-up"), ("tree", "http", "look-up"))
"""(innermost stage, stage further out, the stage to count instead)."""

THREADS: Final = {"embedded-log": "log"}
"""By the prefix of a thread's name."""


def stage_map() -> dict[str, Any]:
    """Returns the arguments of `StageMap`."""
    return {"code": {path_of(code): stage for code, stage in CODE.items()}, "called_from": CALLED_FROM, "threads": THREADS}


def path_of(code: Any) -> str:
    """Returns the path of a package, a module, or a function in a module, as the sampler finds it in a frame."""
    if isinstance(code, ModuleType):
        return code.__name__.replace(".", "/") + ("/" if hasattr(code, "__path__") else ".py")
    return f"{code.__module__.replace('.', '/')}.py:{code.__qualname__}"
