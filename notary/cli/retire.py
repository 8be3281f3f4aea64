"""`notary retire`: fences a worker's incarnation and removes its name from the voters (R9)."""

import argparse
import asyncio

from joiner import IncarnationState
from notary.cli import owner
from notary.config import Config, load
from ordering.errors import ConfigurationError
from ordering.records import Retire

NAMES_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary retire`."""
    parser.add_argument("name", metavar="NAME", help="the name under which the worker serves; if it still runs, it stops")
    owner.add_index_argument(parser)
    owner.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Retire the worker. Returns 0 when the record took effect, 1 when it did not."""
    outcome, state = asyncio.run(_retire(load(arguments.config), arguments))
    done = f"worker {state.name} (incarnation {state.incarnation}) is retired: it has no vote until it registers again"
    return owner.report(outcome, done, {"name": state.name, "incarnation": state.incarnation}, as_json=arguments.json)


async def _retire(config: Config, arguments: argparse.Namespace) -> tuple[owner.CommandOutcome, IncarnationState]:
    async with owner.opened(config, "retire") as log:
        key = owner.load_owner_key(config, arguments.owner_key, log.genesis)
        await log.replay(await log.state_in(arguments.index))
        state = log.joiner.incarnations.named(arguments.name)
        if state is None:
            names = sorted(log.joiner.incarnations.names_since(0))
            shown = ", ".join(names[:NAMES_SHOWN]) + (" and more" if len(names) > NAMES_SHOWN else "")
            raise ConfigurationError(f"worker {arguments.name!r} has no incarnation to retire. Workers that have one: {shown or 'none'}")
        return await log.append(Retire(state.incarnation), key), state
