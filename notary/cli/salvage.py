"""`notary salvage`: puts back decisions that the log lost, from everything that survived (R11, docs/salvage.md).

Its steps, and the result of a crash after each:

| step | a crash after it leaves |
|---|---|
| read the log into an index of the command's own, choose, ask | only that index, from which the next run continues |
| a seal for each entry at the end whose content is missing | from the seal on, records of workers are skipped; the next run continues |
| a new key, in a file of the command's own, then its `key` record | a key in force that no worker has; the next run makes another one |
| `begin`, items | the same: nothing takes effect before `done` |
| `done` | the salvage is done; workers lack the key. The next run finds the key in force in its own file, and compares again |
| the log that is read back, compared with the choice | the same |
| the key in place of the present one | everything is done |
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from joiner import Joiner, JoinerState, Ready
from joiner.recheck import examine
from notary import keys
from notary.access import alone_in
from notary.cli import ProgressLine, owner, print_result
from notary.cli.replay import Replay
from notary.config import Config, load
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.receipts.note import VerifierKey
from notary.salvage.choice import Choice, choose
from notary.salvage.goal import Goal, decode_goal
from notary.salvage.indexes import StoredIndex, open_indexes
from notary.salvage.kept import KeptIndex, keeping
from notary.salvage.key_files import KeyFiles
from notary.salvage.reach import Reach, facts_of_reach, reach_of
from notary.salvage.receipts import read_receipts
from notary.salvage.report import after, facts_of, lines_forgotten, lines_of, sides_of
from notary.salvage.statements import THE_LOG, ChoiceRefused, Receipt
from ordering.durable import make_directory, replace_file
from ordering.errors import ConfigurationError, CorruptRecord, NotaryError, OutcomeUnknown
from ordering.log import Record, describe
from ordering.records import SALVAGE_FORMAT, SalvageBegin, SalvageDone, SalvageItems
from ordering.salvage import Item, encode_items
from ordering.signatures import SigningKey, endorse_key

ATTEMPTS_MAX: Final = 10
ITEMS_BYTES: Final = 900 << 10
"""The most bytes of items in a record, unless one item alone has more: a decision with 10,000 conflicts has 690 kB."""
WORK: Final = "salvage"


def add_arguments(parser: argparse.ArgumentParser, work: str = WORK) -> None:
    """Add the flags of `notary salvage`, or of a command that extends it. `work`: the default of `--work`."""
    several: dict[str, Any] = {"action": "append", "default": [], "type": Path, "metavar": "DIR"}
    index = "a surviving index, or a restored snapshot; may be given again. Its worker may be running"
    receipts = "a folder, or a file, with receipts and requests of parties, as `notary submit` has them; may be given again"
    lost = "no machine and no backup has the notary's present key: the salvage's key begins a new key history"
    parser.add_argument("--index", **several, help=index)
    parser.add_argument("--receipts", **several, help=receipts)
    parser.add_argument("--lost", action="store_true", help=lost)
    owner.add_plan_arguments(parser, work)


def run(arguments: argparse.Namespace) -> int:
    """Salvage. Returns 0 when it is done, or nothing is missing; 1 if the sources are refused or the operator answered no."""
    return asyncio.run(SalvageCommand(load(arguments.config), arguments).run())


class SalvageCommand:
    """One run of the command. `notary failover` is a salvage of the log in a mirror."""

    name = "salvage"
    work = WORK

    def __init__(self, config: Config, arguments: argparse.Namespace) -> None:
        self._config, self._arguments = config, arguments
        self._work: Path = arguments.work or config.path(self.work)
        self._progress = ProgressLine()
        self._sealed = 0
        self._keys = KeyFiles(config, self._work, lost=arguments.lost)
        self._goal_file = self._work / "goal"
        """The file with the goal of an attempt, written before its `done`."""

    async def run(self) -> int:
        """Read the log, choose, ask, append. Returns the exit code."""
        make_directory(self._work)
        with alone_in(self._work, f"another process works in the folder {self._work}: wait for it"):
            async with self._opened() as log:
                identity = f"{log.log.identity} {log.log_id.hex()}"
                with keeping(self._work / "index", log.genesis.notary_name, identity) as kept:
                    state = kept.state()
                    await self._check_start(log, state)
                    if state.effects and (lost := await examine(log.log, state.effects, state.marks)):
                        raise ConfigurationError(
                            f"the log does not hold the history of {self._work / 'index'}, which an earlier run made, or a snapshot that"
                            f" was restored there: {lost}. Remove that folder, and run the same command again"
                        )
                    await log.replay(state, kept.apply, kept.stored_tree)
                    self._check_key(log)
                    with self._sources(log, kept) as job:
                        return await self._salvage(job)

    async def _check_start(self, log: owner.OwnedLog, state: JoinerState) -> None:
        """Raise `ConfigurationError` if contents that the command's index needs were freed (R11, trim)."""
        freed = [at for at, offsets in (await log.log.offsets()).items() if state.offsets_next.get(at, 0) < offsets.log_start]
        if freed:
            raise ConfigurationError(
                f"contents at the start of {describe(min(freed))} were freed, and the command would read the log from before them."
                f" {self._if_freed()}"
            )

    def _if_freed(self) -> str:
        """Returns the remedy if the command cannot read the log from its start."""
        return (
            f"Remove {self._work / 'index'}, restore a snapshot there that is not ahead of the log (`NOTARY_INDEX_DIRECTORY="
            f"{self._work.resolve()} notary snapshot restore --name index`), and run the same command again"
        )

    def _if_inactive(self, log: owner.OwnedLog) -> str:
        """Returns the remedy if records of a salvage do not count yet."""
        if log.joiner.hole is not None:
            return (
                "and behind its last entry, whose content is missing, no activation has an effect. Bring that content back, or restore the"
                " log from an archive (docs/runbook.md, Salvaging what the log lost)"
            )
        return (
            f"run `notary retire` for each worker that does not come back, then `notary activate {SALVAGE_FORMAT}`, then the same command"
            " again (docs/runbook.md, Salvaging what the log lost)"
        )

    def _if_key_is_lost(self) -> str:
        """Returns the remedy if no machine and no backup has the key in force, and this machine has another one."""
        key_file = self._keys.present.key
        return (
            f"move {key_file} to {keys.next_of(key_file).name}, and run `notary key rotate --lost`: it puts that key, or a new one, in"
            f" force. But if the log ends at an entry without content, move {key_file} away, and give --lost here"
        )

    def _check_key(self, log: owner.OwnedLog) -> None:
        self._keys.check(log.state, self.name, self._if_key_is_lost())

    def _complete_rotation(self, job: "SalvageJob") -> None:
        self._keys.complete_rotation({*job.log.state.keys, *_shown_keys(job)})

    def _missing_keys(self, job: "SalvageJob") -> list[str]:
        """Returns the verifier keys that were in force by a source, and that neither the log nor this machine has."""
        known = [key.public_key for key in self._keys.known()]
        missing = _shown_keys(job) - {*known, *self._keys.own(), *job.log.state.keys}
        return [str(VerifierKey(self._config.origin, key)) for key in sorted(missing)]

    def _suspected(self, job: "SalvageJob") -> dict[str, str]:
        """Returns why the log, an index or a receipt may be wrong, by its name; only those with a reason (R9, R10). `done` ends them.

        No worker signs a checkpoint larger than the tree was when its key was replaced. If a replaced key signed one beyond the log's end,
        the log lost that end before the key was replaced, or a thief of the key forged it.
        """
        writers = ", ".join(sorted(job.log.joiner.suspicions.open))
        found = {THE_LOG: f"{writers} saw another history" if writers else ""}
        found |= {index.name: index.why_suspected() for index in job.indexes}
        own = self._keys.own()
        for key in [key for key in job.log.state.keys if key not in own][:-1]:
            beyond = [receipt.name for receipt in job.receipts if receipt.key == key and receipt.size > job.kept.tree.size]
            if beyond:
                more = f" and {len(beyond) - 1:,} more" if len(beyond) > 1 else ""
                found[beyond[0]] = (
                    f"{VerifierKey(self._config.origin, key)} signed it{more} beyond the log's end, and the log replaced that key. If that"
                    " key was stolen, leave out what it signed, unless the log lost its end before the key was replaced"
                )
        return {name: why for name, why in found.items() if why}

    def _opened(self) -> AbstractAsyncContextManager[owner.OwnedLog]:
        return owner.opened(self._config, self.name)

    def _facts(self, job: "SalvageJob", choice: Choice) -> dict[str, Any]:
        """Returns the plan for programs."""
        receipts = {source: {"receipts": receipts, "requests": requests} for source, (receipts, requests) in job.counts.items()}
        waiting = facts_of_reach(self._reach(job))["missing"]
        facts = {"seals": job.log.joiner.hole is not None, "waiting": waiting, "receipts": receipts}
        return {**facts_of(choice), **facts, "suspected": self._suspected(job), "keys_missing": self._missing_keys(job)}

    def _lines(self, job: "SalvageJob", choice: Choice) -> Iterator[str]:
        """Yields the plan for people."""
        reach = self._reach(job)
        yield f"the log has    {choice.first:,} decisions"
        yield from lines_of(choice, job.indexes, job.receipts, job.counts, reach)
        yield from lines_forgotten(choice, reach)
        yield from self._warnings(job)

    def _warnings(self, job: "SalvageJob") -> Iterator[str]:
        for name, why in self._suspected(job).items():
            yield f"suspected      {name}: {why}"
            yield "               Give the indexes of all workers that survived, so that they are compared"
        if self._keys.without_key:
            yield "lost key       nothing will endorse the new key: no client and no verifier trusts it before you give it to them."
            yield "               First look for the notary's key on every worker's machine, and in the backups"
        for key in self._missing_keys(job):
            yield f"missing key    {key} was in force, and the log lost that rotation. If a machine has that key,"
            yield "               copy key and key history from there first: else its receipts do not verify with the new history"

    def _reach(self, job: "SalvageJob") -> Reach:
        return reach_of(job.log.joiner.snapshot(), job.log.state, job.kept.tree.size)

    def _is_needed(self, job: "SalvageJob", choice: Choice) -> bool:
        """Returns False if nothing has to be salvaged."""
        return bool(choice.items) or job.log.joiner.hole is not None or job.log.state.sealed or self._own_key(job) is not None

    @contextmanager
    def _sources(self, log: owner.OwnedLog, kept: KeptIndex) -> Iterator["SalvageJob"]:
        known = self._keys.known()
        with open_indexes(self._arguments.index, log.log_id, self._progress) as indexes:
            # A key history that began anew after a lost key lacks the keys before, and the log may have lost a rotation.
            in_force = [*log.state.keys, *[key for index in indexes for key in index.keys]]
            trusted = dict.fromkeys([*known, *[VerifierKey(self._config.origin, key) for key in in_force]])
            read = read_receipts(self._arguments.receipts, log.genesis.notary_name, list(trusted))
            yield SalvageJob(log, kept, indexes, read.receipts, read.counts)

    async def _salvage(self, job: "SalvageJob") -> int:
        goal = self._goal_in_effect(job)
        if goal is not None:
            self._check(job, goal)
        try:
            choice = self._chosen(job)
            # This run may have other sources than the one that was interrupted: what only they have is put back by another salvage.
            if goal is not None and not choice.items and job.log.joiner.hole is None:
                return await self._complete(job, goal)
            facts = self._facts(job, choice)
            for line in () if self._arguments.json else self._lines(job, choice):
                print(line)
            if not self._is_needed(job, choice):
                no_key = ". No key was made: run `notary key rotate --lost`" if self._keys.without_key else ""
                return self._end({**facts, "done": False}, f"nothing is missing: the log has all decisions of these sources{no_key}")
            if self._arguments.plan:
                return self._end({**facts, "done": False}, "this was the plan: nothing was appended")
            if SALVAGE_FORMAT not in job.log.state.formats:
                raise ConfigurationError(
                    f"records of format version {SALVAGE_FORMAT} do not count in this log yet: {self._if_inactive(job.log)}"
                )
            signer = owner.load_owner_key(self._config, self._arguments.owner_key, job.log.genesis)
            asked = "the number of decisions that the log then has"
            if not owner.agreed(self._arguments, self.name, "nothing was appended", asked, choice.end):
                return self._end({**facts, "done": False}, "nothing was appended", code=EXIT_NO)
            self._complete_rotation(job)
            salvages = job.log.state.salvages
            for attempt in range(ATTEMPTS_MAX):
                if attempt:
                    if job.log.state.salvages != salvages and self._own_key(job) is None:
                        raise ConfigurationError(
                            f"another {self.name} has taken effect meanwhile, and workers may already have its key,"
                            f" {VerifierKey(self._config.origin, job.log.state.key)}, which stays in force. If decisions are missing in"
                            " the log, copy key and key history from the machine where it took place, and run `notary salvage`"
                        )
                    self._report(f"another record came between: the {self.name} starts over, with another key")
                if (done := await self._attempt(job, signer)) is not None:
                    return await self._place_key(job, *done)
        except ChoiceRefused as refusal:
            return await self._refused(job, refusal)
        raise OutcomeUnknown(
            f"other records of the owner interrupted {ATTEMPTS_MAX} attempts: stop other commands, and run the same command again"
        )

    async def _refused(self, job: "SalvageJob", refusal: ChoiceRefused) -> int:
        """Report that the sources contradict each other; returns the exit code."""
        self._progress.end()
        began = self._own_key(job) is not None
        until = await self._deciding_entry(job, refusal.position) if any(THE_LOG in side for side in refusal.sides) else None
        facts = {"refused": str(refusal), "position": refusal.position, "sides": refusal.sides, "until": until, "began": began}
        restore_to = until if self._config.log.kind == "kafka" else None
        lines = [f"refused        {refusal}", *sides_of(refusal, job.kept, job.indexes, job.receipts, restore_to)]
        if began:
            lines.append("               An earlier run put a key in force that no worker has: only a complete salvage ends that")
        return self._end({"done": False, **facts}, *lines, code=EXIT_NO)

    async def _deciding_entry(self, job: "SalvageJob", position: int) -> int | None:
        """Replay the log; returns the offset of the entry that decided this position.

        Returns None if the log has no decision there, if a salvage put it back, or if contents of the log were freed. Returns None, too, if
        the log cannot be read now: the refusal must be reported in any case.
        """
        id_, log = job.kept.transaction_at(position), job.log.log
        if id_ is None:
            return None
        deciding: list[int] = []

        def observe(_: Sequence[Record], ready: Ready) -> None:
            deciding.extend([batch.offset for batch in ready.batches if any(request.transaction_id == id_ for request in batch.requests)])

        replay = Replay(log, Joiner(), observe, f"notary {self.name}")
        replay.enough = lambda: bool(deciding)
        try:
            if not any(offsets.log_start for offsets in (await log.offsets()).values()):
                await replay.read_to_end()
        except NotaryError as problem:
            self._report(f"the ordering record of position {position} was not found: {problem}")
        finally:
            await replay.close()
        return deciding[0] if deciding else None

    async def _complete(self, job: "SalvageJob", goal: Goal) -> int:
        """Complete the salvage of an earlier run, whose `done` took effect; with `--plan` only report it."""
        if self._arguments.plan:
            return self._end(
                {"done": False, "in_effect": True, "decisions": goal.size, "root": goal.root.hex()},
                f"a {self.name} took effect in an earlier run, and the log has {goal.size:,} decisions. The same command without --plan"
                " puts its key in place",
            )
        self._keys.require()
        return await self._place_key(job, None, None)

    def _chosen(self, job: "SalvageJob") -> Choice:
        try:
            return choose(job.kept, job.indexes, job.receipts)
        finally:
            self._progress.end()

    def _goal_in_effect(self, job: "SalvageJob") -> Goal | None:
        """Returns the goal of an earlier run whose `done` took effect, and whose key is in force; None without one.

        Raises `ConfigurationError` for a file that is damaged.
        """
        if self._own_key(job) is None or not self._goal_file.exists():
            return None
        try:
            goal = decode_goal(self._goal_file.read_bytes())
        except CorruptRecord as problem:
            raise ConfigurationError(f"{self._goal_file} is damaged: {problem}. Remove it: the next run makes another key") from None
        state = job.log.state
        return goal if not state.sealed and state.settled > state.key_seen and goal.is_in(job.kept.tree) else None

    def _own_key(self, job: "SalvageJob") -> Path | None:
        """Returns the file of the key in force, if an attempt of this command made it: no worker has it yet."""
        return self._keys.own().get(job.log.state.key)

    async def _attempt(self, job: "SalvageJob", signer: SigningKey) -> tuple[Choice, int] | None:
        """Append seals, the key, `begin`, the items and `done`. Returns the choice and the offset of `done`; None if one took no effect.

        Raises `OutcomeUnknown`, also if records that came meanwhile contradict the sources.
        """
        log, sealed, in_force = job.log, self._sealed, job.log.state.key
        while log.joiner.hole is not None:
            self._report(f"sealing entry ({log.joiner.hole.incarnation}, {log.joiner.hole.sequence}), whose content is missing")
            await log.seal(signer)
            self._sealed += 1
        if self._sealed > sealed:  # a rotation behind the entry took effect only now
            if self._keys.without_key and log.state.key not in {in_force, *self._keys.own()}:
                raise ConfigurationError(
                    f"the key in force is {VerifierKey(self._config.origin, log.state.key)} now, by a rotation behind the entry that was"
                    " sealed. Copy key and key history from the machine where it took place, and run the same command without --lost. If"
                    " that key is lost too, run the same command again"
                )
            self._check_key(log)
            self._complete_rotation(job)
        self._goal_file.unlink(missing_ok=True)  # the file of an earlier attempt
        new = self._keys.make()
        if not (await log.append(endorse_key(new, log.log_id, log.state.key), signer)).took_effect or log.state.key != new.public_key:
            return None
        begin = SalvageBegin(new.public_key, log.joiner.history.view, job.kept.tree.size)
        if not (await log.append(begin, signer)).took_effect:
            return None
        try:
            choice = self._chosen(job)
        except ChoiceRefused as refusal:
            raise OutcomeUnknown(
                f"the sources were accepted, and records came into the log since that contradict them: {refusal}. A key that no worker has"
                " is in force: stop all workers, and run the same command again"
            ) from None
        sent = 0
        for some in _records(choice.first, choice.items):
            record = SalvageItems(new.public_key, log.joiner.history.view, choice.first + sent, some)
            if not (await log.append(record, signer)).took_effect:
                return None
            sent += len(some)
            self._progress("items", sent, len(choice.items))
        self._progress.end()
        if log.joiner.snapshot().items != choice.items:
            return None  # another process appended items in place of ours; a reader without a tree cannot detect our wrong root
        goal = Goal(choice.end, choice.root, tuple(choice.items))
        replace_file(self._goal_file, goal.encode())
        done = SalvageDone(new.public_key, log.joiner.history.view, choice.end, choice.root)
        outcome = await log.append(done, signer)
        if not outcome.took_effect:
            return None
        self._check(job, goal)
        return choice, outcome.offset

    def _check(self, job: "SalvageJob", goal: Goal) -> None:
        """Compare the index of the log, which has read all records back, with the goal. Raises `OutcomeUnknown`.

        A crash before it leaves the goal, so the next run compares again before it puts the key in place.
        """
        tree = job.kept.tree
        consumed = job.kept.consumed([state for state, _ in goal.consumed])
        if not goal.is_in(tree) or any(consumed.get(state) != consumer for state, consumer in goal.consumed):
            raise OutcomeUnknown(
                f"`done` took effect, but the log that was read back differs: {tree.size} decisions with the root {tree.root.hex()}, not"
                f" {goal.size} with {goal.root.hex()}, or other consumed states. Start no worker, and keep {self._work}"
            )

    async def _place_key(self, job: "SalvageJob", choice: Choice | None, offset: int | None) -> int:
        made = self._own_key(job)
        assert made is not None
        history = self._keys.adopt(made)
        self._goal_file.unlink()
        tree = job.kept.tree
        facts = {
            "done": True,
            "offset": offset,
            "resumed": choice is None,
            "decisions": tree.size,
            "root": tree.root.hex(),
            "verifier_key": history[-1].verifier_key,
            "endorsed": len(history) > 1,
            **self._keys.present.shown(),
            **({} if choice is None else {**facts_of(choice), "seals": self._sealed > 0}),
        }
        return self._end(facts, *after(facts, embedded=self._config.log.kind == "embedded"))

    def _report(self, text: str) -> None:
        self._progress.end()
        print(f"notary {self.name}: {text}", file=sys.stderr)

    def _end(self, facts: dict[str, Any], *lines: str, code: int = EXIT_DONE) -> int:
        print_result(facts, lines, as_json=self._arguments.json)
        return code


class SalvageJob(msgspec.Struct, frozen=True):
    """The open log and the sources of a salvage."""

    log: owner.OwnedLog
    kept: KeptIndex
    indexes: list[StoredIndex]
    receipts: list[Receipt]
    counts: dict[str, tuple[int, int]]
    """The number of receipts and requests, by the argument that names them."""


def _shown_keys(job: SalvageJob) -> set[bytes]:
    """Returns the public keys that were in force by the sources of a salvage."""
    return {key for index in job.indexes for key in index.keys} | {receipt.key for receipt in job.receipts}


def _records(first: int, items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    """Yields the items in pieces, one for each record."""
    piece: list[Item] = []
    piece_bytes = 0
    for position, item in enumerate(items, first):
        item_bytes = len(encode_items(position, [item]))
        if piece and piece_bytes + item_bytes > ITEMS_BYTES:
            yield tuple(piece)
            piece, piece_bytes = [], 0
        piece.append(item)
        piece_bytes += item_bytes
    if piece:
        yield tuple(piece)
