"""`notary activate`: makes records of another format version valid in the log, from here on (R10)."""

import argparse
import asyncio

from notary.cli import owner
from notary.config import Config, load
from ordering.errors import ConfigurationError
from ordering.records import FORMAT_VERSION, Activate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary activate`."""
    parser.add_argument("version", type=int, metavar="VERSION", help="the format version; every worker with a vote must read it already")
    owner.add_index_argument(parser)
    owner.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Activate the format version. Returns 0 when the record took effect, 1 when it did not."""
    outcome = asyncio.run(_activate(load(arguments.config), arguments))
    done = f"format version {arguments.version} is active"
    return owner.report(outcome, done, {"format_version": arguments.version}, as_json=arguments.json)


async def _activate(config: Config, arguments: argparse.Namespace) -> owner.CommandOutcome:
    version = arguments.version
    if not 1 <= version <= FORMAT_VERSION:
        raise ConfigurationError(
            f"this software reads format versions up to {FORMAT_VERSION}, not {version}: run the command of a version that reads it"
        )
    async with owner.opened(config, "activate") as log:
        key = owner.load_owner_key(config, arguments.owner_key, log.genesis)
        await log.replay(await log.state_in(arguments.index))
        if version in log.state.formats:
            raise ConfigurationError(f"format version {version} is active already: {', '.join(map(str, sorted(log.state.formats)))}")
        return await log.append(Activate(version), key)
