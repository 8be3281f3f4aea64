"""The mutants: broken rules, one line each. A test that passes with all of them tests nothing.

A mutant is a function, a method or a module, an expression or statements that occur in it exactly once, and their replacement. The symbol is
the object itself, so a renamed one is an error of imports and types. Code is compared as Python parses it: lines and brackets do not matter.
Where two lines do the same work, a mutant breaks both. Each names the rule that it breaks, and the number of seeds, from seed 1 on, within
which the simulator must notice it (`python -m tests.mutants`, docs/testing.md). That is several times the number last measured, since the
meaning of a seed changes with the draws.
"""

import ast
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import msgspec

from joiner import history, payloads
from joiner.applied import Applied
from joiner.control import LogState
from joiner.core import Joiner
from joiner.driver import Driver
from joiner.due import DueProposals
from joiner.evidence import Suspicions
from joiner.history import History
from joiner.incarnations import Incarnations
from joiner.log_clock import LogClock
from joiner.payloads import Payloads
from joiner.proposals import Proposals
from joiner.queue import SubmissionQueue
from joiner.read_ahead import ReadAhead
from joiner.recheck import Recheck
from joiner.sender import Sender
from joiner.share import Limiter
from joiner.stalled import Stalls
from notary import agreement, decide, open_log
from notary.agreement import Votes
from notary.gate import Gate
from notary.http import lookups, problems, submission
from notary.http.in_flight import InFlight
from notary.http.lifecycle import AwaitedDecisions, Lifecycle
from notary.http.reads import Read
from notary.index.index import Index
from notary.index.tiles import StoredTree
from notary.quota import Quota
from notary.self_check import SelfCheck
from payload import request

SEEDS_FEW: Final = 30
SIMULATOR: Final = "tests.simulation"
MODEL: Final = "tests.model"
"""The model of salvages, whose histories the real joiner and index read in real records (R11)."""


class Broken(msgspec.Struct, frozen=True):
    """Code in a symbol, and its replacement: an expression, statements, or the head of a compound statement, which keeps its body."""

    symbol: Any
    code: str
    broken: str

    @property
    def file(self) -> str:
        """The file of the symbol, from the root of the repository."""
        module = self.symbol.__name__ if isinstance(self.symbol, ModuleType) else _function(self.symbol).__module__
        return f"{module.replace('.', '/')}.py"

    def apply(self, source: str) -> str:
        """Returns the source of its file with the code replaced. Raises `ValueError` unless it occurs exactly once in the symbol."""
        tree = ast.parse(source)
        name = "" if isinstance(self.symbol, ModuleType) else _function(self.symbol).__qualname__
        replacement = _Replacement(self.code, self.broken)
        replacement.visit(_definition(tree, name))
        if replacement.found != 1:
            raise ValueError(
                f"the code occurs {replacement.found} times in {name or self.file}, once is right: {self.code!r}."
                " Where that line has changed, change the mutant in tests/mutants/mutants.py too"
            )
        return ast.unparse(tree)


def _function(symbol: Any) -> Any:
    return symbol.fget if isinstance(symbol, property) else symbol


def _definition(tree: ast.Module, name: str) -> ast.AST:
    """Returns the definition with that qualified name; the module for an empty name."""
    found: ast.AST = tree
    for part in name.split(".") if name else ():
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        named = [node for node in ast.iter_child_nodes(found) if isinstance(node, kinds) and node.name == part]
        if len(named) != 1:
            raise ValueError(f"there are {len(named)} definitions of {part}, of {name}" if named else f"there is no {name}")
        found = named[0]
    return found


class _Replacement(ast.NodeTransformer):
    """Replaces code in a tree, and counts where it was found."""

    def __init__(self, code: str, broken: str) -> None:
        self.found = 0
        self._is_head = code.endswith(":")
        body = "\n    case _: pass" if code.startswith("match ") else " pass"
        parsed: list[list[Any]] = [[*ast.parse(each + body if self._is_head else each).body] for each in (code, broken)]
        self._code, self._broken = parsed
        self._is_expression = all(len(each) == 1 and isinstance(each[0], ast.Expr) for each in (self._code, self._broken))
        self._wanted = [self._compared(statement) for statement in self._code]

    def visit(self, node: ast.AST) -> Any:
        """Replace the expression, or the statements in every list of statements."""
        if self._is_expression:
            wanted = self._code[0].value
            if type(node) is type(wanted) and ast.dump(node) == ast.dump(wanted):
                self.found += 1
                return self._broken[0].value
            return self.generic_visit(node)
        self.generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, self._replaced(statements))
        return node

    def _replaced(self, statements: list[Any]) -> list[Any]:
        count = len(self._code)
        for at in range(len(statements) - count + 1):
            if [self._compared(statement) for statement in statements[at : at + count]] == self._wanted:
                self.found += 1
                if self._is_head:
                    for field in _BODIES & set(self._broken[-1]._fields):
                        setattr(self._broken[-1], field, getattr(statements[at], field))
                return statements[:at] + self._broken + statements[at + count :]
        return statements

    def _compared(self, statement: ast.stmt) -> str:
        """Returns what must be the same: all of a statement, or its kind and its condition or subject."""
        if not self._is_head:
            return ast.dump(statement)
        condition: Any = getattr(statement, "test", None) or getattr(statement, "subject", statement)
        return type(statement).__name__ + ast.dump(condition)


_BODIES: Final = {"body", "orelse", "cases"}


class Mutant(msgspec.Struct, frozen=True):
    """Broken code, and the other code that must be broken with it because it does the same work."""

    name: str
    rule: str
    symbol: Any
    code: str
    broken: str
    seeds: int = SEEDS_FEW
    also: tuple[Broken, ...] = ()
    module: str = SIMULATOR
    """The module whose seeds must notice it."""

    def apply(self, read: Callable[[str], str]) -> dict[str, str]:
        """Returns the mutated sources, by file; `read` returns a file's source. Raises `ValueError` as `Broken.apply` does."""
        sources: dict[str, str] = {}
        for one in (Broken(self.symbol, self.code, self.broken), *self.also):
            sources[one.file] = one.apply(sources.get(one.file) or read(one.file))
        return sources


UNINTERRUPTED = Broken(
    Driver._interruption,
    "self.interruptions += bool(why)",
    'why = ""',
)
MARKS_ALONE = Broken(
    Driver._examine,
    "joiner.history.since(agreed)",
    "()",
)
FOREIGN_SKIPPED = Broken(
    Applied._apply,
    "match record:",
    "if isinstance(record, _WORKER_RECORDS) and not head.own_view:\n    return True\nmatch record:",
)
LOSSES_AWAITED = Broken(Sender.expect, "not late", "True")
"""The place that notices the loss of an acknowledged append."""

MUTANTS: Final = (
    # R2: what counts
    Mutant(
        "sequence unchecked",
        "R2",
        Incarnations.counts,
        "state is not None and not state.fenced and sequence > state.sequence_last",
        "state is not None and not state.fenced",
    ),
    Mutant(
        "fenced incarnations still count",
        "R2",
        Incarnations.counts,
        "state is not None and not state.fenced and sequence > state.sequence_last",
        "state is not None and sequence > state.sequence_last",
    ),
    Mutant("a repeated registration counts", "R5", Incarnations.register, "nonce in self._nonces", "False"),
    Mutant(
        "duplicate worker names are not fenced", "R5", Incarnations.register, "self._fence(before) if before is not None else None", "None"
    ),
    Mutant(
        "fences are not compared",
        "R5",
        Incarnations.fence,
        "state is None or state.fenced or state.sequence_last != sequence_last",
        "state is None or state.fenced",
        seeds=500,
    ),
    Mutant("half of the incarnations' state is forgotten", "R8", Index._put_joiner_state, "ready.incarnations", "ready.incarnations[1:]"),
    # R3: content
    Mutant(
        "the last record wins",
        "R3",
        Payloads.content,
        "self.buffer.get(partition, incarnation, sequence)",
        "reversed(self.buffer.get(partition, incarnation, sequence))",
        seeds=200,
    ),
    Mutant(
        "unknown incarnations are dropped",
        "R5",
        Joiner._take_payload,
        "self.incarnations.is_past(incarnation, sequence)",
        "not self.incarnations.counts(incarnation, sequence)",
    ),
    Mutant(
        "ids are not compared with the entry",
        "R3",
        Applied._requests,
        "tuple([request.transaction_id for request in requests]) != entry.transaction_ids",
        "False",
        seeds=200,
    ),
    Mutant(
        "content is taken from any partition",
        "R3",
        Applied._apply_entry,
        "self.payloads.content(entry.partition, incarnation, sequence, entry.payload_hash, log, own)",
        "next((c for p in range(9) if (c := self.payloads.content(p, incarnation, sequence, entry.payload_hash, log, own))), None)",
        seeds=200,
    ),
    # R4: holes
    Mutant("holes are never filled", "R4", DueProposals.fills, "now_ms < self.fills_due_ms", "True"),
    Mutant(
        "holes are skipped",
        "R4",
        Applied._apply_entry,
        "self.hole = entry\nreturn False",
        "self.hole = entry\nreturn True",
    ),
    Mutant(
        "a filled batch is answered", "R4", Sender._resolve_own, "ordered.filled or ordered.requests != batch.requests", "False", seeds=100
    ),
    Mutant(
        "what was answered stays counted",
        "R4",
        SubmissionQueue.answer,
        "self._finish(pending, decisions[at : at + count])",
        "[waiter(decisions[at : at + count]) for waiter in pending.waiters]",
    ),
    Mutant(
        "batches of a fenced incarnation are not sent again",
        "R5",
        Sender._resolve_fenced,
        "name[0] == incarnation",
        "False",
    ),
    Mutant(
        "a failed append does not end the incarnation",
        "R5",
        Sender._send,
        "session.broken = session.broken or str(problem)",
        "pass",
        seeds=1000,
    ),
    # bounded memory, and progress in spite of it
    Mutant("the hole's own partition is paused", "R4", Joiner._paused, "paused.discard(self.applied.hole.partition)", "pass", seeds=100),
    Mutant(
        "what was passed is kept", "R5", Applied._drop_through, "self.payloads.buffer.drop_through(incarnation, sequence) - expected", "0"
    ),
    Mutant(
        "the buffer is never full",
        "R5",
        Joiner._paused,
        "size_bytes > (limits.buffer_bytes_max * 3 // 4 if self._buffer_full else limits.buffer_bytes_max)",
        "False and size_bytes > (limits.buffer_bytes_max * 3 // 4 if self._buffer_full else limits.buffer_bytes_max)",
    ),
    Mutant(
        "the ordering queue is never full",
        "R4",
        Joiner._paused,
        "self._queue.ids > (limits.queue_ids_max * 3 // 4 if self._queue_full else limits.queue_ids_max)",
        "False and self._queue.ids > (limits.queue_ids_max * 3 // 4 if self._queue_full else limits.queue_ids_max)",
        seeds=100,
    ),
    Mutant(
        "silent incarnations are never fenced",
        "R5",
        DueProposals.fences,
        "state is None or state.active_at_ms >= silent_since_ms or not payloads.buffer.size_of(incarnation)[0]",
        "True",
        seeds=2000,
    ),
    Mutant(
        "duplicate worker names are never noticed",
        "R5",
        Sender._resolve_fenced,
        "self._duplicate_name_fences += 1",
        "self._duplicate_name_fences += 0",
    ),
    Mutant(
        "a stalled reader is kept",
        "driver",
        Stalls.update,
        "self._settings.stall_s",
        "10**9",
        seeds=100,
    ),
    Mutant(
        "nothing is ever paused",
        "R4",
        Driver._apply,
        "(paused := (ready.paused | self._undeclared()) - self._recheck.waits_for) != self._paused",
        "(paused := self._paused) is None",
    ),
    # R6: time
    Mutant(
        "log time by the local clock",
        "R6",
        Applied._advance_log_time,
        "self.log_time_ms = max(self.log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))",
        "self.log_time_ms = max(self.log_time_ms, head.arrived_ms)",
    ),
    Mutant(
        "log time runs backwards",
        "R6",
        Applied._advance_log_time,
        "self.log_time_ms = max(self.log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))",
        "self.log_time_ms = max(0, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))",
    ),
    Mutant(
        "the broker's clock is believed",
        "R6",
        Applied._advance_log_time,
        "self.log_time_ms = max(self.log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))",
        "self.log_time_ms = max(self.log_time_ms, head.source.append_time_ms)",
    ),
    Mutant(
        "log time is forgotten at a restart",
        "R8",
        Index.joiner_state,
        "self._log_time_ms",
        "0",
    ),
    Mutant(
        "the end of a window belongs to it",
        "R6",
        decide.decide,
        "request.from_ms <= log_time_ms < request.until_ms",
        "request.from_ms <= log_time_ms <= request.until_ms",
        seeds=1000,
    ),
    # R7: decided once
    Mutant("a retry is decided again", "R7", decide.decide, "decided.get(id_)", "None"),
    Mutant("conflicts inside a step are not seen", "R7", decide.decide, "consumed.update(dict.fromkeys(inputs, id_))", "pass"),
    Mutant(
        "references come before inputs",
        "contract",
        decide._reject,
        "(conflicts := _conflicts(request.inputs, Kind.INPUT, consumers))",
        "not _conflicts(request.references, Kind.REFERENCE, consumed) and (conflicts := _conflicts(request.inputs, Kind.INPUT, consumers))",
    ),
    Mutant(
        "references are consumed",
        "contract",
        decide.decide,
        "dict.fromkeys(inputs, id_)",
        "dict.fromkeys((*inputs, *request.references), id_)",
        seeds=200,
    ),
    Mutant(
        "only the first input is kept",
        "R7",
        Index.apply,
        "request.inputs",
        "request.inputs[:1]",
    ),
    # R8: persist, then answer
    Mutant("resume past the buffer", "R8", Joiner._offsets_next, "needed.get(partition, offset)", "offset"),
    Mutant(
        "the offset of the wrong partition",
        "R8",
        Joiner._offsets_next,
        "needed.get(partition, offset)",
        "needed.get(0, offset)",
        seeds=100,
    ),
    Mutant(
        "answered before it is written",
        "R8",
        Index.apply,
        "self._store.write(batch)",
        "batch, self._behind = getattr(self, '_behind', None) or self._store.new_batch(), batch\nself._store.write(batch)",
    ),
    Mutant(
        "the offsets are a step ahead of the rows",
        "R8",
        Index.apply,
        "rows.PROGRESS.pack(position_next, ready.log_time_ms)",
        "rows.PROGRESS.pack(self._position_next, ready.log_time_ms)",
    ),
    Mutant(
        "each submission gets the first one's decisions",
        "R8",
        SubmissionQueue.answer,
        "at += count",
        "pass",
    ),
    # R9: the tree
    Mutant(
        "a changed row is answered",
        "R9",
        Index._checked,
        "self.tree.check(position, [leaf_of_row(transaction_id, row)])",
        "pass",
        seeds=200,
    ),
    Mutant(
        "tiles above the first level are not kept",
        "R9",
        StoredTree.append,
        "put(rows.tile_key(level, index), tile)",
        "level or put(rows.tile_key(level, index), tile)",
        seeds=100,
    ),
    Mutant(
        "no receipt is given",
        "contract",
        InFlight._receipt,
        "if not self._form.receipts:",
        "if True:",
    ),
    Mutant(
        "a worker writes the root of another size",
        "R9",
        SelfCheck.due,
        "tree.root_at(size)",
        "tree.root_at(size - 1)",
    ),
    # HTTP: every call is answered in time, and rejected for a reason alone
    Mutant(
        "the wait that is asked for is not heeded",
        "contract",
        InFlight._queue,
        "min(settings.wait_ms_default if asked_s is None else asked_s * 1000, settings.wait_ms_max)",
        "settings.wait_ms_max",
    ),
    Mutant(
        "a look-up waits for as long as it can",
        "contract",
        Read._begin_long_poll,
        "min(wait_s, worker.config.http.wait_s_max)",
        "worker.config.http.wait_s_max",
    ),
    Mutant("who waits for a decision is not woken", "contract", AwaitedDecisions.applied, "if self._waiting:", "if False:"),
    Mutant(
        "an admitted submission is rejected when the wait runs out",
        "contract",
        InFlight._answer,
        '202, [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)]',
        '503, [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)]',
    ),
    Mutant(
        "look-ups are rejected when submissions are",
        "contract",
        Read._found,
        "worker.serving_suspended",
        "worker.not_ready",
    ),
    Mutant(
        "who waits at the end of a worker hears nothing",
        "contract",
        Lifecycle.detach,
        "list(self.waiting)",
        "()",
    ),
    Mutant(
        "a full queue does not say when to come again",
        "contract",
        problems.problem_of,
        "QuotaExceeded | Overloaded | NotReady",
        "QuotaExceeded | NotReady",
    ),
    Mutant("a 404 does not say how far the worker is", "contract", lookups._transaction, "worker.index.position_next", "0"),
    Mutant(
        "a receipt of its neighbour is given",
        "contract",
        lookups._transaction,
        "worker.issuer.receipt(position)",
        "worker.issuer.receipt(position ^ 1 if position else 0)",
    ),
    Mutant(
        "another leaf stands first in a tile",
        "contract",
        lookups._entries,
        "(yield from worker.index.leaves_in_pieces(path.index * TILE_WIDTH, path.width))",
        "(yield from worker.index.leaves_in_pieces(path.index * TILE_WIDTH, path.width))[::-1]",
    ),
    Mutant(
        "a state is consumed a position later",
        "contract",
        lookups._state,
        "consumed.position",
        "consumed.position + 1",
    ),
    # admission: what should be rejected is, and nobody else
    Mutant(
        "signatures are not verified",
        "contract",
        Gate._admit,
        "not verify(submission.signature, message)",
        "False",
    ),
    Mutant(
        "anyone who names a party uses its quota up",
        "contract",
        Gate._admit,
        "if not verify(submission.signature, message):",
        "if self._quota is not None:\n    self._quota.charge(submission.party, len(submission.requests))\nif not verify(submission.signature, message):",
        seeds=100,
    ),
    Mutant(
        "all parties share one quota",
        "contract",
        Quota._tokens,
        "self._buckets.get(party, (float(per_s), now))",
        "self._buckets.get(next(iter(self._buckets), ''), (float(per_s), now))",
        seeds=200,
    ),
    Mutant("no quota is ever used up", "contract", Quota.rejection, "needed - self._tokens(party, per_s, now)", "0", seeds=200),
    Mutant("a body of any size is read", "contract", Gate.count_piece, "size > SUBMISSION_BYTES_MAX", "False", seeds=100),
    Mutant("any media type will do", "contract", submission._form_of, "check_json(content_type, encodings)", "pass", seeds=100),
    Mutant(
        "a state may be given twice",
        "contract",
        request._with_id,
        'raise _twice(wire.inputs, "inputs")',
        "pass",
        seeds=200,
    ),
    Mutant(
        "a queue is never full",
        "contract",
        SubmissionQueue.rejection,
        "self.is_calm(requests, size_bytes) or not self.pending_requests",
        "True",
        seeds=100,
    ),
    Mutant(
        "a queue is full too early",
        "contract",
        Limiter.rejects,
        "here + requests",
        "3 * here + requests",
    ),
    Mutant(
        "only seven of a batch are sent again",
        "R4",
        SubmissionQueue.put_back,
        "batch.submissions",
        "batch.submissions[:7]",
        seeds=1000,
    ),
    # incarnations that grow old
    Mutant(
        "an incarnation that lasted is lost like others",
        "R5",
        Sender._resolve_fenced,
        "now_s - self._registered_s[incarnation] > DUPLICATE_NAME_SESSION_S",
        "False",
        seeds=1000,
    ),
    # R9: who is wrong is found out, and nobody else stops
    Mutant("no checkpoints are written", "R9", SelfCheck._compare, "await self._sender.append_checkpoint(*record)", "pass", seeds=200),
    Mutant("roots are never compared", "R9", Index._compared, "votes or agreement.pending", "False", seeds=200),
    Mutant("no index is ever quarantined", "R9", agreement._tally, "winner is None", "True", seeds=200),
    Mutant("the first vote quarantines", "R9", Votes.winner, "count >= VOTES_MIN and 2 * count > len(voters)", "True", seeds=200),
    Mutant(
        "it answers during a root disagreement",
        "R9",
        SelfCheck.serving_suspended,
        "agreement.disagreement",
        "None",
        seeds=500,
    ),
    Mutant("rows are never audited", "R9", SelfCheck._audit, "self._index.audit(tile)", "()", seeds=100),
    # R6: clocks that are wrong by years
    Mutant("a clock wrong by years is believed", "R6", LogClock.suspicion, "log_ms is None or settings.clock_accepted", "True", seeds=200),
    # R10: who may write
    Mutant(
        "signatures of records are not looked at",
        "R10",
        Applied.is_signed,
        "not record_is_signed(head.source.value, log.log_id, key)",
        "False",
        seeds=200,
    ),
    Mutant(
        "a former key still signs",
        "R10",
        Applied.is_signed,
        "record_is_signed(head.source.value, log.log_id, key)",
        "any(record_is_signed(head.source.value, log.log_id, one) for one in (key, *log.keys))",
        seeds=2000,
    ),
    Mutant(
        "a former key comes back",
        "R10",
        LogState.with_key,
        "record.public_key in self.keys or not key_is_endorsed(record, self.log_id, self.key)",
        "not key_is_endorsed(record, self.log_id, self.key)",
        seeds=500,
    ),
    Mutant(
        "fills need no signature",
        "R10",
        payloads.is_content,
        "is_fill(value, log.log_id, partition, key, payload_hash, log.key)",
        "len(value) == 96 or is_fill(value, log.log_id, partition, key, payload_hash, log.key)",
        seeds=500,
    ),
    Mutant(
        "any content will do",
        "R3",
        payloads.is_content,
        "is_fill(value, log.log_id, partition, key, payload_hash, log.key)",
        "True or is_fill(value, log.log_id, partition, key, payload_hash, log.key)",
        seeds=500,
    ),
    # R10: what the log was
    Mutant("the history has no append times", "R10", history.extended, "_LINK.pack(append_time_ms)", "_LINK.pack(0)"),
    Mutant("the history has no marks", "R10", history.extended, "bytes((mark,))", "bytes(1)"),
    Mutant(
        "an interrupted reader does not look at the log",
        "R10",
        Recheck.take,
        "not found",
        "False",
        seeds=500,
    ),
    Mutant(
        "after an interruption only the ordering topic is looked at",
        "R10",
        Recheck.__init__,
        "sought(run, marks, contents=False)",
        "sought(run, {ORDERING: marks[ORDERING]} if marks else {}, contents=False)",
        seeds=2000,
    ),
    Mutant(
        "what was read ahead is kept", "R10", Driver._begin_comparison, "self.joiner.forget_unapplied", "self.joiner.read_next", seeds=2000
    ),
    Mutant("a passed hole is filled", "R10", Proposals._fill, "passing is not None", "False", seeds=500),
    Mutant(
        "who passed a hole is believed under any key",
        "R10",
        ReadAhead._take,
        "seen_there > self._seen and record_is_signed(value, self.log_state.log_id, self.log_state.key)",
        "seen_there > self._seen",
        seeds=2000,
    ),
    Mutant(
        "what is read again is taken for read",
        "R8",
        Joiner._offsets_next,
        "min(offset_next, 0 if mark is None else mark.offset + 1)",
        "0 if mark is None else mark.offset + 1",
        seeds=2000,
    ),
    Mutant(
        "records under unknown names keep a worker out",
        "R10",
        Driver._catch_up,
        "{partition: end for partition, end in self._ends_to_reach.items() if partition not in self._paused}",
        "{partition: end for partition, end in self._ends_to_reach.items()}",
        seeds=500,
    ),
    Mutant(
        "the mark is the last content joined",
        "R10",
        Applied._take_effect,
        "before is None or before.offset < found.offset",
        "True",
        seeds=2000,
    ),
    Mutant(
        "reading continues where it stood",
        "R10",
        Joiner._offsets_next,
        "min(offset_next, 0 if mark is None else mark.offset + 1)",
        "offset_next",
        seeds=500,
    ),
    Mutant(
        "what was skipped in the order is taken for read",
        "R10",
        Joiner._offsets_next,
        "0 if last is None else last.offset + 1",
        "self._offset_head",
        seeds=1000,
    ),
    Mutant(
        "a view that is too old raises a suspicion",
        "R10",
        History.compare,
        "Comparison.TOO_OLD",
        "Comparison.FOREIGN",
        seeds=30,
        also=(Broken(history, "1 << 16", "6"),),
    ),
    Mutant(
        "nobody looks at more than the marks, and not after an interruption",
        "R10",
        Recheck.take,
        "not found",
        "False",
        seeds=500,
        also=(MARKS_ALONE,),
    ),
    Mutant("no interruption is ever seen", "R10", UNINTERRUPTED.symbol, UNINTERRUPTED.code, UNINTERRUPTED.broken, seeds=30),
    Mutant(
        "no interruption is ever seen, and foreign views are skipped",
        "R10",
        UNINTERRUPTED.symbol,
        UNINTERRUPTED.code,
        UNINTERRUPTED.broken,
        seeds=30,
        also=(FOREIGN_SKIPPED, MARKS_ALONE),
    ),
    Mutant("a foreign view is skipped", "R10", FOREIGN_SKIPPED.symbol, FOREIGN_SKIPPED.code, FOREIGN_SKIPPED.broken, seeds=500),
    Mutant("a worker that replays believes the log", "R10", Suspicions.foreign, "not self.live", "False", seeds=500),
    Mutant(
        "a worker registers before it has read the log",
        "R10",
        Driver.may_not_append,
        "not self.joiner.suspicions.live",
        "False",
        seeds=30,
    ),
    Mutant(
        "an append that the log lost is waited for", "R10", LOSSES_AWAITED.symbol, LOSSES_AWAITED.code, LOSSES_AWAITED.broken, seeds=2000
    ),
    Mutant(
        "what a rotation or a loss skipped is not sent again",
        "R10",
        Sender._resolve_key,
        "session is not None and session.key.public_key != key",
        "False",
        seeds=100,
        also=(LOSSES_AWAITED,),
    ),
    Mutant(
        "a partition that contradicted is not waited for",
        "R10",
        Driver._read_with,
        "self.trust.refuted",
        "False",
        seeds=500,
    ),
    Mutant(
        "the name in the configuration is not compared with the log's",
        "R10",
        open_log.check_genesis,
        "configured != found",
        "False",
        seeds=100,
    ),
    Mutant(
        "a paused process continues",
        "R10",
        Driver._interruption,
        "stopped_s > limit_s",
        "False",
        seeds=100,
    ),
    Mutant(
        "what waits of an unread topic-partition is not looked at",
        "R10",
        Driver._unread,
        "self._now_s() - seconds",
        'float("-inf")',
        seeds=2000,
    ),
    Mutant(
        "a paused process answers",
        "R10",
        Driver.suspicion,
        "reader is not None and self._now_s() - self._ran_at_s > self._settings.interrupted_after_s",
        "False",
        seeds=2000,
    ),
    Mutant(
        "what was kept does not wait for its partition",
        "R10",
        Recheck.take,
        "[record for record in self._held if record.partition not in self._wanted]",
        "list(self._held)",
        seeds=2000,
    ),
    Mutant(
        "what waited for another partition is applied unseen",
        "R10",
        Driver._read_with,
        "not was_done and await self._lost_while_held(records)",
        "False",
        seeds=500,
    ),
    Mutant(
        "what was kept is not handed in again",
        "R8",
        Recheck.__init__,
        "[record for partition in self._kept for record in self._kept[partition].records]",
        "[]",
        seeds=500,
    ),
    Mutant(
        "what lies behind the mark is kept",
        "R10",
        Joiner.forget_unapplied,
        "min(self._read_next.get(partition, 0), mark.offset + 1)",
        "self._read_next.get(partition, 0)",
        seeds=1000,
    ),
    Mutant(
        "what was dropped for want of memory is taken for kept",
        "R8",
        Payloads.kept,
        "to_reread.append(dropped.offset)",
        "pass",
        seeds=1000,
    ),
    Mutant(
        "payloads that are slow are sent as fast as others",
        "R4",
        Sender._resolve_own,
        "now_s + SEQUENTIAL_S",
        "now_s",
        seeds=2000,
    ),
    Mutant("a log that is quiet is not compared", "R9", SelfCheck.due, "not self._is_quiet(incarnation, senders)", "True", seeds=2000),
    Mutant(
        "an outvoted vote opens a root disagreement again",
        "R9",
        agreement._count,
        "agreement.quarantined or is_older or (seen.incarnation == incarnation and seen.size >= size)",
        "agreement.quarantined",
        seeds=2000,
    ),
    Mutant(
        "a snapshot of the joiner has no offsets of what was dropped",
        "R8",
        Joiner.restore,
        "{partition: Dropped.restored(records) for partition, records in snapshot.dropped}",
        "{}",
        seeds=300,
    ),
    Mutant(
        "a step of a salvage takes effect with an older view",
        "R11",
        Applied._apply_salvage,
        "record.view == self.history.view",
        "True",
        module=MODEL,
    ),
    Mutant(
        "a trim takes effect with a foreign view",
        "R11",
        Applied._has_view_of_ours,
        "comparison is Comparison.OWN",
        "True",
        module=MODEL,
    ),
    Mutant("a salvage counts under any key", "R11", Applied._apply_salvage, "record.key == log.key", "True", module=MODEL),
    Mutant("a trim counts under any key", "R11", Applied._has_view_of_ours, "record.key != log.key", "False", module=MODEL),
    Mutant("a sealed entry has the mark of a filled one", "R11", Applied._apply_entry, "2", "0", module=MODEL),
    Mutant("done leaves suspicions", "R11", Applied._salvage, "self.suspicions.settle(self.history.seen)", "pass", module=MODEL),
    Mutant("workers' records count behind a seal", "R11", Applied._apply, "self.log_state.sealed", "False", module=MODEL),
    Mutant("a settle record counts in a salvage", "R11", LogState.with_settled, "self.sealed", "False", module=MODEL),
    Mutant("a settle record counts under any key", "R11", LogState.with_settled, "record.key != self.key_to_settle", "False", module=MODEL),
    Mutant("items count twice", "R11", Applied._drop_items, "self.items.clear()", "pass", module=MODEL),
    Mutant("a begin needs no new key", "R11", LogState.with_salvage, "self.key_seen != seen", "False", module=MODEL),
    Mutant("done has any root", "R11", LogState.with_salvage, "tree.root_with(items) != record.root", "False", module=MODEL),
    Mutant("salvaged conflicts reserve nothing", "R11", Index._put_salvage, "if cited:", "if False:", seeds=100, module=MODEL),
)
