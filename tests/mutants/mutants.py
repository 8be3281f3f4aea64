"""The mutants: broken rules, one line each. A test that passes with all of them tests nothing.

A mutant is a file, a text that occurs in it exactly once, and its replacement. Where two lines do the same work, it breaks both. Each names
the rule that it breaks, and the number of seeds, from seed 1 on, within which the simulator must notice it (`python -m tests.mutants`,
docs/testing.md). That is several times the number last measured, since the meaning of a seed changes with the draws.
"""

from collections.abc import Callable
from typing import Final

import msgspec

SEEDS_FEW: Final = 30


class Broken(msgspec.Struct, frozen=True):
    """A text in a file, and its replacement."""

    file: str
    text: str
    broken: str


class Mutant(msgspec.Struct, frozen=True):
    """One broken line, and the others that must be broken with it because they do the same work."""

    name: str
    rule: str
    file: str
    text: str
    broken: str
    seeds: int = SEEDS_FEW
    also: tuple[Broken, ...] = ()

    def apply(self, read: Callable[[str], str]) -> dict[str, str]:
        """Returns the mutated sources, by file; `read` returns a file's source. Raises `ValueError` unless each text occurs exactly once."""
        sources: dict[str, str] = {}
        for one in (Broken(self.file, self.text, self.broken), *self.also):
            source = sources.get(one.file) or read(one.file)
            if source.count(one.text) != 1:
                raise ValueError(f"{self.name}: the text stands {source.count(one.text)} times in {one.file}: {one.text!r}")
            sources[one.file] = source.replace(one.text, one.broken)
        return sources


CORE, INCARNATIONS, BUFFER, SENDER, DRIVER = (f"joiner/{name}.py" for name in ("core", "incarnations", "buffer", "sender", "driver"))
AWAITED, IN_FLIGHT, LIFECYCLE, LOOKUPS, PROBLEMS, READS = (
    f"notary/http/{name}.py" for name in ("awaited", "in_flight", "lifecycle", "lookups", "problems", "reads")
)
CONTROL, EVIDENCE, HISTORY, LOOK, PROPOSALS = (f"joiner/{name}.py" for name in ("control", "evidence", "history", "look", "proposals"))
GATE, QUOTA, QUEUE = "notary/gate.py", "notary/quota.py", "joiner/queue.py"
DECIDE, INDEX, TILES = "notary/decide.py", "notary/index/index.py", "notary/index/tiles.py"
LOG_TIME: Final = (
    "self._log_time_ms = max(self._log_time_ms, min(head.source.append_time_ms, entry.sent_at_ms + SENT_AT_AHEAD_MAX_MS))\n        requests"
)
AGREEMENT, SELF_CHECK = "notary/agreement.py", "notary/self_check.py"
UNINTERRUPTED = Broken(
    DRIVER,
    "        self.interruptions += bool(why)\n",
    '        why = ""\n',
)
MARKS_ALONE = Broken(
    DRIVER,
    "lost = await examine(self._log, joiner.history.since(agreed), joiner.marks)",
    "lost = await examine(self._log, (), joiner.marks)",
)
FOREIGN_SKIPPED = Broken(
    CORE,
    "        if ready.evidence is not None:\n            return False\n        match record:",
    "        if ready.evidence is not None:\n            return False\n        if isinstance(record, _WORKER_RECORDS) and not head.own_view:\n            return True\n        match record:",
)
LOSSES_AWAITED = Broken(SENDER, "        if not late:\n            return", "        if True:\n            return")
"""The place that notices the loss of an acknowledged append."""

MUTANTS: Final = (
    # R2: what counts
    Mutant("sequence unchecked", "R2", INCARNATIONS, "not state.fenced and sequence > state.sequence_last\n", "not state.fenced\n"),
    Mutant(
        "fenced lives still count",
        "R2",
        INCARNATIONS,
        "state is not None and not state.fenced and sequence >",
        "state is not None and sequence >",
    ),
    Mutant("a repeated registration counts", "R5", INCARNATIONS, "if nonce in self._nonces:", "if False:"),
    Mutant("duplicate worker names are not fenced", "R5", INCARNATIONS, "self._fence(before) if before is not None else None", "None"),
    Mutant(
        "fences are not compared", "R5", INCARNATIONS, "state.fenced or state.sequence_last != sequence_last:", "state.fenced:", seeds=500
    ),
    Mutant(
        "half of the lives' state is forgotten", "R8", INDEX, "for changed in ready.incarnations:", "for changed in ready.incarnations[1:]:"
    ),
    # R3: content
    Mutant(
        "the last record wins",
        "R3",
        CORE,
        "for candidate in self._buffer.get(partition, incarnation, sequence):",
        "for candidate in reversed(self._buffer.get(partition, incarnation, sequence)):",
        seeds=200,
    ),
    Mutant(
        "unknown incarnations are dropped",
        "R5",
        CORE,
        "if record.value is None or self.incarnations.is_past(incarnation, sequence):",
        "if record.value is None or not self.incarnations.counts(incarnation, sequence):",
    ),
    Mutant("ids are not compared with the entry", "R3", CORE, "if not _same_ids(requests, entry.transaction_ids):", "if False:", seeds=200),
    Mutant(
        "content is taken from any partition",
        "R3",
        CORE,
        "content = self._content(entry.partition, incarnation, sequence, entry.payload_hash, own)\n        if self",
        "content = next((c for p in range(9) if (c := self._content(p, incarnation, sequence, entry.payload_hash, own))), None)\n        if self",
        seeds=200,
    ),
    # R4: holes
    Mutant("holes are never filled", "R4", CORE, "if now_ms < self._fills_due_ms:", "if True:"),
    Mutant(
        "holes are skipped",
        "R4",
        CORE,
        "            self._hole = entry\n            return False",
        "            self._hole = entry\n            return True",
    ),
    Mutant("a filled batch is answered", "R4", SENDER, "if ordered.filled or ordered.requests != batch.requests:", "if False:", seeds=100),
    Mutant(
        "what was answered stays counted",
        "R4",
        "joiner/queue.py",
        "            self._let_go(pending, decisions[at : at + count])",
        "            [waiter(decisions[at : at + count]) for waiter in pending.waiters]",
    ),
    Mutant(
        "batches of a fenced life are not sent again",
        "R5",
        SENDER,
        "for name in self.unresolved if name[0] == incarnation])",
        "for name in self.unresolved if False])",
    ),
    Mutant(
        "a failed append does not end the life",
        "R5",
        SENDER,
        "                session.broken = session.broken or str(problem)\n            elif isinstance(problem, BaseException):",
        "                pass\n            elif isinstance(problem, BaseException):",
        seeds=1000,
    ),
    # bounded memory, and progress in spite of it
    Mutant("the hole's own partition is paused", "R4", CORE, "paused.discard(self._hole.partition)", "pass", seeds=100),
    Mutant("what was passed is kept", "R5", CORE, "dropped = self._buffer.drop_through(incarnation, sequence) - expected", "dropped = 0"),
    Mutant(
        "the buffer is never full",
        "R5",
        CORE,
        "self._buffer_full = self._buffer.size_bytes >",
        "self._buffer_full = False and self._buffer.size_bytes >",
    ),
    Mutant(
        "the ordering queue is never full",
        "R4",
        CORE,
        "self._queue_full = self._queue_ids > (",
        "self._queue_full = False and self._queue_ids > (",
        seeds=100,
    ),
    Mutant(
        "silent lives are never fenced",
        "R5",
        CORE,
        "if state is None or state.fenced or state.active_at_ms >= silent_since_ms:",
        "if True:",
        seeds=2000,
    ),
    Mutant(
        "duplicate worker names are never noticed", "R5", SENDER, "self._duplicate_name_fences += 1", "self._duplicate_name_fences += 0"
    ),
    Mutant(
        "a stalled reader is kept",
        "driver",
        DRIVER,
        "> self._settings.stall_s:\n            self._remake_reader",
        "> 10**9:\n            self._remake_reader",
        seeds=100,
    ),
    Mutant("nothing is ever paused", "R4", DRIVER, "(paused := ready.paused | self._undeclared()) != self._paused:", "False:"),
    # R6: time
    Mutant(
        "log time by the local clock", "R6", CORE, LOG_TIME, "self._log_time_ms = max(self._log_time_ms, head.arrived_ms)\n        requests"
    ),
    Mutant("log time runs backwards", "R6", CORE, LOG_TIME, LOG_TIME.replace("max(self._log_time_ms, ", "max(0, ")),
    Mutant(
        "the broker's clock is believed",
        "R6",
        CORE,
        LOG_TIME,
        "self._log_time_ms = max(self._log_time_ms, head.source.append_time_ms)\n        requests",
    ),
    Mutant(
        "log time is forgotten at a restart",
        "R8",
        INDEX,
        "return joiner_state_of(self._meta, self._offsets_next, self._log_time_ms)",
        "return joiner_state_of(self._meta, self._offsets_next, 0)",
    ),
    Mutant(
        "the end of a window belongs to it",
        "R6",
        DECIDE,
        "request.from_ms <= log_time_ms < request.until_ms:",
        "request.from_ms <= log_time_ms <= request.until_ms:",
        seeds=1000,
    ),
    # R7: decided once
    Mutant("a retry is decided again", "R7", DECIDE, "decision = decided.get(id_)", "decision = None"),
    Mutant("conflicts inside a step are not seen", "R7", DECIDE, "consumed.update(dict.fromkeys(inputs, id_))", "pass"),
    Mutant(
        "references come before inputs",
        "contract",
        DECIDE,
        "if conflicts := _conflicts(request.inputs, Kind.INPUT, consumed):",
        "if not _conflicts(request.references, Kind.REFERENCE, consumed) and (conflicts := _conflicts(request.inputs, Kind.INPUT, consumed)):",
    ),
    Mutant(
        "references are consumed",
        "contract",
        DECIDE,
        "consumed.update(dict.fromkeys(inputs, id_))",
        "consumed.update(dict.fromkeys((*inputs, *request.references), id_))",
        seeds=200,
    ),
    Mutant(
        "only the first input is kept",
        "R7",
        INDEX,
        "for state in request.inputs:",
        "for state in request.inputs[:1]:",
    ),
    # R8: persist, then answer
    Mutant("resume past the buffer", "R8", CORE, "            if earliest is not None:\n", "            if False:\n"),
    Mutant(
        "the offset of the wrong partition",
        "R8",
        CORE,
        "earliest = self._buffer.offset_earliest(partition)",
        "earliest = self._buffer.offset_earliest(0)",
        seeds=100,
    ),
    Mutant(
        "answered before it is written",
        "R8",
        INDEX,
        "            self._store.write(batch)\n        except Exception as problem:  # rocksdict raises bare Exception\n            # The tree",
        "            batch, self._behind = getattr(self, '_behind', None) or self._store.new_batch(), batch; self._store.write(batch)\n        except Exception as problem:  # rocksdict raises bare Exception\n            # The tree",
    ),
    Mutant(
        "the offsets are a step ahead of the rows",
        "R8",
        INDEX,
        "put(rows.PROGRESS_KEY, rows.PROGRESS.pack(position_next, ready.log_time_ms), meta)",
        "put(rows.PROGRESS_KEY, rows.PROGRESS.pack(self._position_next, ready.log_time_ms), meta)",
    ),
    Mutant(
        "each submission gets the first one's decisions",
        "R8",
        "joiner/queue.py",
        "            self._let_go(pending, decisions[at : at + count])\n            at += count",
        "            self._let_go(pending, decisions[at : at + count])",
    ),
    # R9: the tree
    Mutant(
        "a changed row is answered",
        "R9",
        INDEX,
        "        self.tree.check(position, [leaf_of_row(transaction_id, row)])\n",
        "",
        seeds=200,
    ),
    Mutant(
        "tiles above the first level are not kept",
        "R9",
        TILES,
        "            put(rows.tile_key(level, index), tile)",
        "            level or put(rows.tile_key(level, index), tile)",
        seeds=100,
    ),
    Mutant(
        "no receipt is given",
        "contract",
        LOOKUPS,
        "    if receipts:\n",
        "    if False:\n",
    ),
    Mutant(
        "a worker writes the root of another size",
        "R9",
        SELF_CHECK,
        "return size, tree.root_at(size)",
        "return size, tree.root_at(size - 1)",
    ),
    # HTTP: every call is answered in time, and refused for a reason alone
    Mutant(
        "the wait that is asked for is not heeded",
        "contract",
        IN_FLIGHT,
        "wait_ms = min(settings.wait_ms_default if asked_ms is None else asked_ms, settings.wait_ms_max)",
        "wait_ms = settings.wait_ms_max",
    ),
    Mutant(
        "a look-up waits for as long as it can",
        "contract",
        READS,
        "call_later(min(wait_s, worker.config.http.wait_ms_max / 1000), self.end)",
        "call_later(worker.config.http.wait_ms_max / 1000, self.end)",
    ),
    Mutant("who waits for a decision is not woken", "contract", AWAITED, "        if self._waiting:\n", "        if False:\n"),
    Mutant(
        "what was taken in is refused when the wait runs out",
        "contract",
        IN_FLIGHT,
        "status, headers = 202, [*JSON, ",
        "status, headers = 503, [*JSON, ",
    ),
    Mutant(
        "look-ups are refused when submissions are",
        "contract",
        READS,
        "if route != NOTARY and (why := worker.serving_suspended()) is not None:",
        "if route != NOTARY and (why := worker.not_ready()) is not None:",
    ),
    Mutant(
        "who waits at the end of a worker hears nothing",
        "contract",
        LIFECYCLE,
        "        for waiting in list(self.waiting):\n",
        "        for waiting in ():\n",
    ),
    Mutant(
        "a full queue does not say when to come again",
        "contract",
        PROBLEMS,
        "if isinstance(error, QuotaExceeded | Overloaded | NotReady):",
        "if isinstance(error, QuotaExceeded | NotReady):",
    ),
    Mutant("a 404 does not say how far the worker is", "contract", LOOKUPS, 'has applied {applied} positions", applied)', '", 0)'),
    Mutant(
        "a receipt of its neighbour is given",
        "contract",
        LOOKUPS,
        "worker.issuer.receipt(position)",
        "worker.issuer.receipt(position ^ 1 if position else 0)",
    ),
    Mutant(
        "another leaf stands first in a tile",
        "contract",
        LOOKUPS,
        "leaves = yield from worker.index.leaves_in_pieces(path.index * TILE_WIDTH, path.width)",
        "leaves = (yield from worker.index.leaves_in_pieces(path.index * TILE_WIDTH, path.width))[::-1]",
    ),
    Mutant(
        "a state is consumed a position later",
        "contract",
        LOOKUPS,
        "StateJson(rest, consumed.by_hash.hex(), consumed.position)",
        "StateJson(rest, consumed.by_hash.hex(), consumed.position + 1)",
    ),
    # admission: what should be refused is, and nobody else
    Mutant(
        "signatures are not verified",
        "contract",
        GATE,
        "if not verify(submission.signature, message):",
        "if False:",
    ),
    Mutant(
        "anyone who names a party uses its quota up",
        "contract",
        GATE,
        "        if not verify(submission.signature, message):",
        "        if self._quota is not None:\n            self._quota.charge(submission.party, requests)\n"
        "        if not verify(submission.signature, message):",
        seeds=100,
    ),
    Mutant(
        "all parties share one quota",
        "contract",
        QUOTA,
        "self._buckets.get(party, ",
        'self._buckets.get(next(iter(self._buckets), ""), ',
        seeds=200,
    ),
    Mutant("no quota is ever used up", "contract", QUOTA, "        if tokens < needed:", "        if False:", seeds=200),
    Mutant("a body of any size is read", "contract", GATE, "        if size > SUBMISSION_BYTES_MAX:", "        if False:", seeds=100),
    Mutant("any media type will do", "contract", "notary/http/submission.py", "    check_json(content_type, encoding)\n", "", seeds=100),
    Mutant(
        "a state may be given twice",
        "contract",
        "payload/request.py",
        '            raise _twice(wire.inputs, "inputs")',
        "            pass",
        seeds=200,
    ),
    Mutant(
        "a queue is never full",
        "contract",
        QUEUE,
        "        if self.is_calm(requests, size_bytes) or not self.pending_requests:",
        "        if True:",
        seeds=100,
    ),
    Mutant(
        "a queue is full too early",
        "contract",
        "joiner/share.py",
        "and here + requests <= requests_max",
        "and 3 * here + requests <= requests_max",
    ),
    Mutant(
        "only seven of a batch are sent again",
        "R4",
        QUEUE,
        "for pending in reversed(batch.submissions):",
        "for pending in reversed(batch.submissions[:7]):",
        seeds=1000,
    ),
    # lives that grow old
    Mutant(
        "a life that lasted is lost like others",
        "R5",
        SENDER,
        "if now_s - self._registered_s[incarnation] > DUPLICATE_NAME_SESSION_S:",
        "if False:",
        seeds=1000,
    ),
    Mutant(
        "a life that lasted is the first of three",
        "R5",
        SENDER,
        "        elif fenced.by is not None and",
        "        if fenced.by is not None and",
        seeds=1000,
    ),
    # R9: who is wrong is found out, and nobody else stops
    Mutant("no checkpoints are written", "R9", SELF_CHECK, "await self._sender.append_checkpoint(*record)", "pass", seeds=200),
    Mutant("roots are never compared", "R9", INDEX, "if places or agreement.pending:", "if False:", seeds=200),
    Mutant("no index is ever quarantined", "R9", AGREEMENT, "    if winner is None:\n", "    if True:\n", seeds=200),
    Mutant("the first vote quarantines", "R9", AGREEMENT, "if count >= VOTES_MIN and 2 * count > len(voters):", "if True:", seeds=200),
    Mutant(
        "it answers during a root disagreement",
        "R9",
        SELF_CHECK,
        "        if (disagreement := agreement.disagreement) is not None:\n            return (\n",
        "        if (disagreement := None) is not None:\n            return (\n",
        seeds=500,
    ),
    Mutant("rows are never audited", "R9", SELF_CHECK, "self._index.audit(tile)", "()", seeds=100),
    # R6: clocks that are wrong by years
    Mutant("a clock wrong by years is believed", "R6", DRIVER, "if last is None or settings.clock_accepted:", "if True:", seeds=200),
    # R10: who may write
    Mutant(
        "signatures of records are not looked at",
        "R10",
        CORE,
        "if not record_is_signed(head.source.value, log.log_id, key):",
        "if False:",
        seeds=200,
    ),
    Mutant(
        "a former key still signs",
        "R10",
        CORE,
        "if not record_is_signed(head.source.value, log.log_id, key):",
        "if not any(record_is_signed(head.source.value, log.log_id, one) for one in (key, *log.keys)):",
        seeds=2000,
    ),
    Mutant("a former key comes back", "R10", CONTROL, "if record.public_key in self.keys or not key_is", "if not key_is", seeds=500),
    Mutant("fills need no signature", "R10", CORE, "return log is not None and is_fill(", "return len(value) == 96 or is_fill(", seeds=500),
    Mutant("any content will do", "R3", CORE, "return log is not None and is_fill(", "return True or is_fill(", seeds=500),
    # R10: what the log was
    Mutant("the history has no append times", "R10", HISTORY, "_LINK.pack(append_time_ms)", "_LINK.pack(0)"),
    Mutant("the history has no marks", "R10", HISTORY, 'b"\\x01" if mark else b"\\x00"', 'b"\\x00"'),
    Mutant(
        "an interrupted reader does not look at the log",
        "R10",
        LOOK,
        "if not found:\n                self.lost",
        "if False:\n                self.lost",
        seeds=500,
    ),
    Mutant(
        "after an interruption only the ordering topic is looked at",
        "R10",
        LOOK,
        "self._wanted = sought(run, marks, contents=False)",
        "self._wanted = sought(run, {ORDERING: marks[ORDERING]} if marks else {}, contents=False)",
        seeds=2000,
    ),
    Mutant("what was read ahead is kept", "R10", DRIVER, "self.joiner.forget_unapplied()", "self.joiner.read_next()", seeds=2000),
    Mutant("a passed hole is filled", "R10", PROPOSALS, "if passing is not None:", "if False:", seeds=500),
    Mutant(
        "who passed a hole is believed under any key",
        "R10",
        PROPOSALS,
        "if seen_there > seen and record_is_signed(value, log_state.log_id, log_state.key):",
        "if seen_there > seen:",
        seeds=2000,
    ),
    Mutant(
        "what is read again is taken for read",
        "R8",
        CORE,
        "wanted = [self._read_next[partition], 0 if mark",
        "wanted = [0 if mark",
        seeds=2000,
    ),
    Mutant(
        "records under unknown names keep a worker out",
        "R10",
        DRIVER,
        "for stream, end in self._ends_found.items() if stream not in self._paused}",
        "for stream, end in self._ends_found.items()}",
        seeds=500,
    ),
    Mutant(
        "the mark is the last content joined", "R10", CORE, "if before is None or before.offset < found.offset:", "if True:", seeds=2000
    ),
    Mutant(
        "reading goes on where it stood",
        "R10",
        CORE,
        "wanted = [self._read_next[partition], 0 if mark is None else mark.offset + 1]",
        "wanted = [self._read_next[partition]]",
        seeds=500,
    ),
    Mutant(
        "what was skipped in the order is taken for read",
        "R10",
        CORE,
        "offsets = {ORDERING: 0 if last is None else last.offset + 1}",
        "offsets = {ORDERING: self._offset_head}",
        seeds=1000,
    ),
    Mutant(
        "a view that is too old raises a suspicion",
        "R10",
        HISTORY,
        "            return Comparison.TOO_OLD\n",
        "            return Comparison.FOREIGN\n",
        seeds=30,
        also=(Broken(HISTORY, "HISTORY_KEPT: Final = 1 << 16", "HISTORY_KEPT: Final = 6"),),
    ),
    Mutant(
        "nobody looks at more than the marks, and not after an interruption",
        "R10",
        LOOK,
        "if not found:\n                self.lost",
        "if False:\n                self.lost",
        seeds=500,
        also=(MARKS_ALONE,),
    ),
    Mutant("no interruption is ever seen", "R10", *msgspec.structs.astuple(UNINTERRUPTED), seeds=30),
    Mutant(
        "no interruption is ever seen, and foreign views are skipped",
        "R10",
        *msgspec.structs.astuple(UNINTERRUPTED),
        seeds=30,
        also=(FOREIGN_SKIPPED, MARKS_ALONE),
    ),
    Mutant("a foreign view is skipped", "R10", *msgspec.structs.astuple(FOREIGN_SKIPPED), seeds=500),
    Mutant("a worker that replays believes the log", "R10", EVIDENCE, "        if not self.live:\n", "        if False:\n", seeds=500),
    Mutant(
        "a worker registers before it has read the log",
        "R10",
        DRIVER,
        "        if not self.joiner.suspicions.live:\n            return",
        "        if False:\n            return",
        seeds=30,
    ),
    Mutant("an append that the log lost is waited for", "R10", *msgspec.structs.astuple(LOSSES_AWAITED), seeds=2000),
    Mutant(
        "what a rotation or a loss skipped is not sent again",
        "R10",
        SENDER,
        "if session is not None and session.key.public_key != key:",
        "if False:",
        seeds=100,
        also=(LOSSES_AWAITED,),
    ),
    Mutant(
        "a partition that contradicted is not waited for",
        "R10",
        DRIVER,
        "led = range(ORDERING, self._log.payload_partitions) if self._refuted else {",
        "led = range(ORDERING, self._log.payload_partitions) if False else {",
        seeds=500,
    ),
    Mutant(
        "the name in the configuration is not compared with the log's",
        "R10",
        "notary/open_log.py",
        "        if configured != found:",
        "        if False:",
        seeds=100,
    ),
    Mutant(
        "a paused process goes on",
        "R10",
        DRIVER,
        "elif stood_still_s > limit_s:",
        "elif False:",
        seeds=100,
    ),
    Mutant(
        "what waits of an unread topic-partition is not looked at",
        "R10",
        DRIVER,
        "        since_s = self._now_s() - seconds\n",
        '        since_s = float("-inf")\n',
        seeds=2000,
    ),
    Mutant(
        "a paused process answers",
        "R10",
        DRIVER,
        "if reader is not None and self._now_s() - self._ran_at_s > self._settings.stood_still_s:",
        "if False:",
        seeds=2000,
    ),
    Mutant(
        "what was kept does not wait for its partition",
        "R10",
        LOOK,
        "ready = [record for record in self._held if record.stream not in self._wanted]",
        "ready = list(self._held)",
        seeds=2000,
    ),
    Mutant(
        "what waited for another partition is applied unseen",
        "R10",
        DRIVER,
        "if not was_done and await self._lost_while_held(records):",
        "if False:",
        seeds=500,
    ),
    Mutant(
        "what was kept is not handed in again",
        "R8",
        LOOK,
        "self._held: list[Record] = [record for partition in self._kept for record in self._kept[partition].records]",
        "self._held: list[Record] = []",
        seeds=500,
    ),
    Mutant(
        "what lies behind the mark is kept",
        "R10",
        CORE,
        "offset_next = min([self._read_next.get(partition, 0), mark.offset + 1, *let_go])",
        "offset_next = min([self._read_next.get(partition, 0), *let_go])",
        seeds=1000,
    ),
    Mutant(
        "what was dropped for want of memory is taken for kept",
        "R8",
        CORE,
        "                let_go.append(self._dropped[partition][0])",
        "                pass",
        seeds=1000,
    ),
    Mutant(
        "payloads that are slow are sent as fast as others",
        "R4",
        SENDER,
        "self._sequential_until_s = now_s + SEQUENTIAL_S",
        "self._sequential_until_s = now_s",
        seeds=2000,
    ),
    Mutant(
        "a log that is quiet is not compared", "R9", SELF_CHECK, "and not self._is_quiet(incarnation, senders))", "and True)", seeds=2000
    ),
    Mutant(
        "an outvoted vote opens a root disagreement again",
        "R9",
        AGREEMENT,
        "if agreement.quarantined or seen.incarnation < incarnation or (seen.incarnation == incarnation and seen.size >= size):",
        "if agreement.quarantined:",
        seeds=2000,
    ),
    Mutant(
        "a snapshot of the joiner has no offsets of what was dropped",
        "R8",
        CORE,
        "        self._dropped = dict(snapshot.dropped)",
        "        self._dropped = {}",
        seeds=300,
    ),
)
