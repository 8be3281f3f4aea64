"""`notary settle`: the owner declares the history of an index to be the valid one (R10)."""

import argparse
import asyncio
from pathlib import Path

from joiner.history import History
from joiner.proposals import read_ahead
from notary.cli import owner
from notary.config import Config, load
from ordering.errors import ConfigurationError
from ordering.records import Settle, View


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary settle`."""
    parser.add_argument(
        "--index",
        required=True,
        type=Path,
        metavar="DIR",
        help="the index with the valid history: the folder of a worker's name under index.directory. Workers with another history stop",
    )
    owner.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Settle the history. Returns 0 when the record took effect, 1 when it did not."""
    outcome, view = asyncio.run(_settle(load(arguments.config), arguments))
    done = f"the history of {view.seen} records with the hash {view.history.hex()} is settled as the valid one"
    return owner.report(outcome, done, {"seen": view.seen, "history": view.history.hex()}, as_json=arguments.json)


async def _settle(config: Config, arguments: argparse.Namespace) -> tuple[owner.CommandOutcome, View]:
    async with owner.opened(config, "settle") as log:
        key = owner.load_owner_key(config, arguments.owner_key, log.genesis)
        state = await log.state_in(arguments.index)
        assert state is not None
        view = History(state.effects).view
        if state.log_state is not None and view.seen <= state.log_state.settled:
            raise ConfigurationError(
                f"a history of {state.log_state.settled} records is settled already, and the history of this index has {view.seen}:"
                " name an index with a longer history"
            )
        # The effect of the record depends on both topics, so read both from the index's offsets on.
        await log.replay(state)
        log_state = log.state
        if (hole := log.joiner.hole_offset) is not None:  # the record lands behind it, where another key may be in force
            _, log_state = await read_ahead(log.log, log_state, hole + 1, log.joiner.history)
        return await log.append(Settle(view, log_state.key_to_settle), key), view
