"""All hostile clients at once, for some seconds; `make hostile` does so for a minute, and measures what is left of the others' rate."""

from pathlib import Path

import pytest

from tests.hostile.site import Seen, made
from tests.hostile.wire import KINDS

pytestmark = [pytest.mark.seconds, pytest.mark.timeout(600)]

RATE = 40.0
SECONDS = 1.5
ENDED_S_MAX = 90.0
PART = 0.25
"""A busy machine has time for so many of the clients."""
SHORT_DEADLINES = {"HTTP_HEAD_MS_MAX": 1_000, "HTTP_BODY_MS_MAX": 1_000, "HTTP_CONNECTIONS_PER_ADDRESS_MAX": 60}
"""Short deadlines: the worker ends within the test what it ends after a while. `left_open` still has more connections than it may."""
MIB_MAX = 800
"""Resident memory: the worker itself, its caches and write buffers, and twice `limits.pending_bytes_max` for bodies and the queue."""


def check(seen: Seen) -> None:
    """Check the facts that hold on any machine, even a slow one."""
    assert not seen.failures
    assert (seen.errors, seen.dropped) == (0, 0)
    assert seen.worker_mib_max < MIB_MAX
    assert seen.connections_after == 0
    for name, tally in seen.attack.items():
        assert tally.connections, name
        assert not tally.wrong, name
        if KINDS[name].ended:
            assert tally.ended, f"no connection of {name} was ended"


def test_well_behaved_clients_are_served_among_hostile_ones(tmp_path: Path) -> None:
    """Others get no wrong answer and lose no connection; memory is bounded; the worker ends connections left open; no bug is logged."""
    with made(tmp_path, rejections=2, settings=SHORT_DEADLINES) as site:
        check(site.phase([name for name, kind in KINDS.items() if not kind.needs], RATE, SECONDS, ended_s_max=ENDED_S_MAX, part=PART))
        while not site.phase([], RATE, SECONDS / 3).decided:  # a second in which the machine may pause
            pass


def test_handshakes_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS the same holds, also with handshakes that begin and do not end."""
    monkeypatch.setenv("SSL_CERT_FILE", "")  # `made` sets it
    with made(tmp_path, tls=True, rejections=1, settings=SHORT_DEADLINES) as site:
        check(site.phase(["handshakes", "trailers", "never-readers", "resets"], RATE, SECONDS, ended_s_max=ENDED_S_MAX, part=PART))
