"""`notary serve` on an embedded log, for tests of anything but its time limits: on a busy machine it waits longer before it gives up.

A worker that was paused for two seconds rejects submissions with 503 until it has compared its log, and tests that expect an answer would
fail. Settings that a test gives stay as they are, and so do workers on brokers, which answer others too.
"""

import sys
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from notary import gate, service
from notary.cli import main, serve
from notary.config import Config

T = TypeVar("T", bound=Struct)

LONG_MS = 600_000
_configured = serve._configured


def _unless_given(settings: T, **values: int) -> T:
    default = type(settings)()
    return replace(settings, **{name: value for name, value in values.items() if getattr(settings, name) == getattr(default, name)})


def with_long_deadlines(config: Config) -> Config:
    """Returns the configuration with longer time limits, where it has the defaults, and makes those longer that are no settings."""
    if config.log.kind != "embedded":
        return config
    service.ANSWERS_LEAVE_S = 60.0
    gate.DECODING_WAIT_S = gate.CONNECTION_WAIT_S_MAX = gate.BUSY_WAIT_S_MAX = LONG_MS / 1000  # type: ignore[misc]
    return replace(
        config,
        driver=_unless_given(config.driver, interrupted_after_ms=LONG_MS, unreachable_ms=LONG_MS, stall_ms=LONG_MS),
        sender=_unless_given(config.sender, append_wait_ms_max=LONG_MS),
        http=_unless_given(config.http, wait_ms_default=config.http.wait_ms_max),
    )


if __name__ == "__main__":
    del sys.path[0]
    serve._configured = lambda arguments: with_long_deadlines(_configured(arguments))
    sys.exit(main(sys.argv[1:]))
