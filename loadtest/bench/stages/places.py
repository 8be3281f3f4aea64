"""The mapping of code to stages. The innermost frame with a stage counts; frames without a stage (None) count for their callers.

New code in the notary counts for its package until it has a line here.
"""

from typing import Final

STAGES: Final = {
    "http": "connections, heads, bodies, answers on their way (notary.http)",
    "decode": "a submission's JSON, its rules, its transaction ids",
    "verify": "the signature, and what surrounds it",
    "look-up": "whether it is decided already: the index, asked before the log",
    "log": "batches, appending and reading them, the embedded log's thread included",
    "kafka client": "aiokafka, both ways",
    "join": "both topics in one order",
    "decode of others": "the same decoding of what other workers took in",
    "decide": "the decision function",
    "index": "RocksDB: looking up, writing",
    "tree": "leaves, hashes, tiles",
    "answer": "decisions and receipts as JSON",
    "event loop": "polling, reading sockets, switching tasks",
    "self-check": "metrics, roots and rows compared",
    "garbage collector": "Python's, in the main thread",
    "native threads": "RocksDB flushing and compacting; a tick of the kernel's clock more or less",
    "other": "what is in no stage",
    "sampler": "what measuring took; not the notary's",
}
"""In the order of a request's path."""

INTAKE: Final = ("http", "decode", "verify", "look-up", "answer")
"""Done once, by the worker that admitted the request: more processes share this work."""
SERIAL: Final = ("join", "decode of others", "decide", "index", "tree")
"""Done by every worker for every request, in order: more processes do not make it faster."""

PLACES: Final[dict[str, str | None]] = {
    "notary/http/": "http",
    "notary/http/in_flight.py:_answer": "answer",
    "notary/worker.py": None,
    "notary/worker.py:rendered": "answer",
    "notary/service.py": None,
    "notary/receipts/": "answer",
    "notary/decision.py": None,
    "notary/wire.py": "answer",
    "notary/gate.py": "verify",
    "notary/bodies.py": "verify",
    "notary/quota.py": "verify",
    "notary/parties.py": "verify",
    "notary/decide.py": "decide",
    "notary/index/": "index",
    "notary/index/tiles.py": "tree",
    "notary/tree/": "tree",
    "notary/metrics.py": "self-check",
    "notary/self_check.py": "self-check",
    "notary/agreement.py": "self-check",
    "notary/": "other",
    "joiner/": "join",
    "joiner/sender.py": "log",
    "joiner/sender.py:resolve": "answer",
    "joiner/sender.py:_resolve_own": "answer",
    "joiner/queue.py": "log",
    "joiner/share.py": "log",
    "joiner/rate.py": "log",
    "joiner/queue.py:answer": "answer",
    "payload/": "decode",
    "payload/submission.py:signed_message": "verify",
    "payload/codec.py:encode_batch": "log",
    "payload/partitions.py": "log",
    "ordering/": "log",
    "ordering/records.py": None,
    "ordering/ids.py": None,
    "aiokafka/": "kafka client",
}
"""By file, folder, or function in a file; the longest match counts."""

CALLED_FROM: Final = {("decode", "join"): "decode of others", ("index", "http"): "look-up", ("tree", "http"): "look-up"}
"""(innermost stage, stage further out): the stage to count instead."""

THREADS: Final = {"embedded-log": "log"}
"""By the prefix of a thread's name."""


def place_of(file: str, function: str) -> str | None:
    """Returns the stage of a function, by its file: a path below the checkout, or below the directory of installed libraries."""
    place = f"{file}:{function}"
    while place:
        if place in PLACES:
            return PLACES[place]
        place = _shorter(place)
    return None


def _shorter(place: str) -> str:
    if ":" in place:
        return place.partition(":")[0]
    folder = place.removesuffix("/").rpartition("/")[0]
    return folder + "/" if folder else ""
