"""Appends records signed by the owner (R10), and reports whether they took effect.

    async with opened(config) as log:              # checks that the log is this notary's
        await log.replay()                         # reads the present incarnations, keys, partitions and formats
        outcome = await log.append(Retire(4), owner)

An acknowledgement means only that the record is in the log. Its place there decides whether it takes effect. So each command reads the log
back, past its own record, and reports the result. A command is atomic: it appends one record, and a second copy of it changes nothing.
"""

import argparse
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from joiner import Joiner, JoinerState, LogState, Ready
from joiner.control import SalvageTree
from joiner.recheck import examine
from notary import keys
from notary.cli import json_line
from notary.cli.replay import Replay
from notary.config import Config
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.index.view import viewing
from notary.open_log import check_genesis, open_log
from ordering.errors import ConfigurationError, OutcomeUnknown
from ordering.genesis import first_record, read_genesis
from ordering.log import ORDERING, Log, Record, describe
from ordering.records import Genesis, OwnerRecord, batch_key
from ordering.signatures import SigningKey, sign_record, sign_seal

OWNER_KEY = "owner-key.pem"


class CommandOutcome(msgspec.Struct, frozen=True):
    """The result of an append: the record's offset in the ordering topic, and why it took no effect (empty if it took effect)."""

    offset: int
    why_not: str

    @property
    def took_effect(self) -> bool:
        """True if the record changed the log's state."""
        return not self.why_not


class OwnedLog:
    """The open log of one notary, and the joiner's state of the part read so far."""

    def __init__(self, log: Log, genesis: Genesis, log_id: bytes, command: str) -> None:
        """Use `opened`."""
        self.log = log
        self.genesis = genesis
        self.log_id = log_id
        self._command = command
        self._replay: Replay | None = None
        self.joiner = Joiner(ordering_only=True)
        self._apply: Callable[[Ready], None] = lambda ready: None
        # For `append`: values, effects and anomalies of the ordering records from `_watched_from` on.
        self._watched_from: int | None = None
        self._values: dict[int, bytes | None] = {}
        self._effects: set[int] = set()
        self._anomalies: dict[int, str] = {}

    @property
    def state(self) -> LogState:
        """The keys, partitions and formats from the log's control records. Call `replay` first."""
        assert self.joiner.log_state is not None
        return self.joiner.log_state

    async def replay(
        self, state: JoinerState | None = None, apply: Callable[[Ready], None] | None = None, tree: SalvageTree | None = None
    ) -> None:
        """Read the ordering topic to its end; or, from an index's `state`, both topics. Raises `ConfigurationError`, `NotReady`.

        `apply` receives each step of the joiner, to keep that index at the log's end. `tree`: the tree of that index.
        """
        self._apply = apply or self._apply
        await self._read(Joiner(state, ordering_only=state is None, tree=tree), needs_leaders=tree is not None)

    async def state_in(self, index: Path | None) -> JoinerState | None:
        """Returns the state from which `replay` resumes: that of the index, compared with the log. None without an index.

        Raises `ConfigurationError` for an index that was made from another log, or whose records the log has lost; `NotReady`.
        """
        if index is None:
            return None
        with viewing(index) as view:
            state, identity = view.joiner_state(), view.log_identity
        if identity != f"{self.log.identity} {self.log_id.hex()}":
            raise ConfigurationError(
                f"the index {index} was made from the log {identity}, and this log is {self.log.identity}: name an index of this log"
            )
        if not state.effects:
            raise ConfigurationError(f"the index {index} has no history: no record has taken effect in it; name another index")
        if lost := await examine(self.log, state.effects, state.marks):
            raise ConfigurationError(f"the log does not hold the history of this index, so no command can begin at it: {lost}")
        return state

    async def _read_both(self) -> None:
        """Read both topics from their start: whether a salvage's records take effect depends on both (R11)."""
        freed = [partition for partition, offsets in (await self.log.offsets()).items() if offsets.log_start]
        if freed:
            raise ConfigurationError(
                f"the log has a salvage, so this command reads contents too, and contents at the start of {describe(min(freed))} were"
                " freed: start from a worker's index, or a restored snapshot, with --index DIR"
            )
        await self._read(Joiner())

    async def _read(self, joiner: Joiner, *, needs_leaders: bool = False) -> None:
        """Read the log to its end through this joiner, in place of any other."""
        await self.close()
        self.joiner = joiner
        self._replay = Replay(self.log, joiner, self._observe, f"notary {self._command}", needs_leaders=needs_leaders)
        await self._read_on()

    async def append(self, record: OwnerRecord, owner: SigningKey) -> CommandOutcome:
        """Append one record, signed by the owner, and read the log back past it. Raises `OutcomeUnknown`, `NotReady`.

        A crash here leaves the record in the log or not; the same command again is safe.
        """
        value = sign_record(record, self.log_id, owner)
        self._watched_from = (await self.log.offsets())[ORDERING].log_end
        await self._append(ORDERING, None, value)
        offset = min([offset for offset, found in self._values.items() if found == value], default=None)
        if offset is None:
            raise OutcomeUnknown(
                "the record was acknowledged, but the log does not return it: run the same command again, the record takes effect once"
            )
        if offset >= self.joiner.offset_head:
            raise OutcomeUnknown(
                f"the record is in the log, at offset {offset}; it waits behind an entry without content: start a worker, which fills it,"
                " or if that content is lost, restore it, or run `notary salvage`, which seals the entry"
            )
        return CommandOutcome(offset, "" if offset in self._effects else self._anomalies.get(offset, "it did not take effect"))

    async def seal(self, owner: SigningKey) -> None:
        """Append a seal for the entry at the head, whose content is missing, and read on (R11).

        A crash here leaves the seal in its partition or not. The first record there, payload or seal, is the content; copies are skipped.
        """
        hole = self.joiner.hole
        assert hole is not None
        name = batch_key(hole.incarnation, hole.sequence)
        sealed = sign_seal(self.log_id, hole.partition, name, hole.payload_hash, self.state.key, owner)
        await self._append(hole.partition, name, sealed)

    async def _append(self, partition: int, key: bytes | None, value: bytes) -> None:
        """Append a record to a topic-partition, and read on."""
        writer = await self.log.open_writer()
        try:
            await writer.append(partition, key, value)
        except OutcomeUnknown as problem:
            raise OutcomeUnknown(
                f"the record may be in the log or not: {problem}. Run the same command again: the record takes effect once"
            ) from None
        finally:
            await writer.close()
        await self._read_on()

    async def close(self) -> None:
        """Stop reading. `opened` closes the log itself."""
        if self._replay is not None:
            await self._replay.close()

    async def _read_on(self) -> None:
        assert self._replay is not None
        await self._replay.read_to_end()
        if self._replay.needs_contents:
            await self._read_both()
        elif self._replay.stop:
            raise ConfigurationError(self._replay.stop)

    def _observe(self, records: Sequence[Record], ready: Ready) -> None:
        self._apply(ready)
        if (first := self._watched_from) is None:
            return
        self._values |= {record.offset: record.value for record in records if record.partition == ORDERING and record.offset >= first}
        self._effects |= {effect.offset for effect in ready.effects if effect.offset >= first}
        self._anomalies |= {
            anomaly.offset: anomaly.text for anomaly in ready.anomalies if anomaly.partition == ORDERING and anomaly.offset >= first
        }


@asynccontextmanager
async def opened(config: Config, command: str, *, mirror: bool = False) -> AsyncIterator[OwnedLog]:
    """Open a configuration's log for the length of a block. With `mirror` it may be a mirror that was not failed over.

    Raises `NotReady`, and `ConfigurationError`, also for another notary's log.
    """
    try:
        log = await open_log(config, mirror=mirror)
    except ConfigurationError as problem:
        if config.log.kind == "embedded" and "open elsewhere" in str(problem):
            raise ConfigurationError(
                f"{problem}. A worker keeps its embedded log open: stop the worker, run this command, start the worker again"
            ) from None
        raise
    try:
        if mirror and await first_record(log) is None:
            raise ConfigurationError(
                f"the mirror at {config.log.bootstrap}, topics of {config.log.topic_prefix}, is empty: `notary mirror` has copied nothing"
                " into it, or --to names other brokers. Never run `notary init` on it (docs/runbook.md, 'Failover to a mirror')"
            )
        genesis, log_id = await read_genesis(log)
        check_genesis(config, genesis)
        owned = OwnedLog(log, genesis, log_id, command)
        try:
            yield owned
        finally:
            await owned.close()
    finally:
        await log.close()


@asynccontextmanager
async def replayed(config: Config, arguments: argparse.Namespace, command: str) -> AsyncIterator[tuple[OwnedLog, SigningKey]]:
    """Open the log as `opened` does, with the owner's key, and read it to its end; from the index of `--index` on, if one is given."""
    async with opened(config, command) as log:
        owner = load_owner_key(config, arguments.owner_key, log.genesis)
        await log.replay(await log.state_in(arguments.index))
        yield log, owner


def load_owner_key(config: Config, given: Path | None, genesis: Genesis) -> SigningKey:
    """Reads the owner's key of this log. Raises `ConfigurationError`, which for a wrong key names both public keys."""
    file = given or config.path(OWNER_KEY)
    if given is None and not file.exists():
        raise ConfigurationError(f"there is no {file}: name the owner's key, which `notary init` made, with --owner-key FILE")
    owner = SigningKey(keys.load(file, keys.OWNERS).private_bytes_raw())
    if owner.public_key != genesis.owner_key:
        raise ConfigurationError(
            f"{file} holds the key {owner.public_key.hex()}, and the owner of this log has {genesis.owner_key.hex()}: name the right file"
        )
    return owner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all commands with an owner's record share."""
    parser.add_argument("--config", required=True, type=Path, metavar="F", help="notary.toml")
    parser.add_argument("--owner-key", type=Path, metavar="FILE", help=f"the owner's key (default: {OWNER_KEY} beside notary.toml)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_plan_arguments(parser: argparse.ArgumentParser, work: str) -> None:
    """Add the arguments of a command that shows its plan, asks (`agreed`) and works in a folder of its own, by default `work`."""
    parser.add_argument("--plan", "--dry-run", dest="plan", action="store_true", help="print the plan, and append nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask before the first record is appended")
    parser.add_argument("--work", type=Path, metavar="DIR", help=f"the command's own folder (default: {work} beside notary.toml)")
    add_arguments(parser)


def add_index_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--index`, for a command that otherwise reads the log from its start."""
    index = "begin at this index, of a worker or a restored snapshot, not at the log's start; needed after a salvage and a trim"
    parser.add_argument("--index", type=Path, metavar="DIR", help=index)


def agreed(arguments: argparse.Namespace, command: str, unchanged: str, asked: str, number: int) -> bool:
    """Ask the operator to type `number`, unless `--yes` was given. Raises `ConfigurationError` if there is no terminal to ask at."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty() or arguments.json:
        raise ConfigurationError(f"{unchanged}: read the plan above (or --plan), then give --yes")
    # asyncio's own handler only cancels the task at its next `await`: after a Ctrl-C the command would go on waiting for a line.
    of_asyncio = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(f"notary {command}: this cannot be undone. Type {asked}, {number}, to go on:", file=sys.stderr)
        return sys.stdin.readline().strip().replace(",", "") == str(number)  # plans show 1,234
    finally:
        signal.signal(signal.SIGINT, of_asyncio)


def report(outcome: CommandOutcome, done: str, facts: dict[str, Any], *, as_json: bool) -> int:
    """Print the result of an append. Returns the exit code: 1 if the record took no effect.

    `done` describes the effect for people, `facts` for programs.
    """
    members = {"offset": outcome.offset, "took_effect": outcome.took_effect, "why_not": outcome.why_not or None, **facts}
    what, text = ("took effect", done) if outcome.took_effect else ("no effect", outcome.why_not)
    print(json_line(members) if as_json else f"{what:<15}ordering record {outcome.offset}: {text}")
    return EXIT_DONE if outcome.took_effect else EXIT_NO
