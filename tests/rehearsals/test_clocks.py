"""Rehearses the clock of the broker that leads the ordering topic: it runs ahead (libfaketime), and is corrected."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.installed import make_program
from tests.rehearsals.drill import Drill
from tests.rehearsals.runbook import ROOT

AHEAD_S = 90


def _libfaketime() -> Path:
    """Returns Debian's libfaketime, fetched once: the broker's process alone gets another clock."""
    folder = ROOT / ".cache" / "faketime"
    if not (found := sorted(folder.rglob("libfaketimeMT.so.1"))):
        assert shutil.which("apt-get"), "the package libfaketime comes from Debian"
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "--quiet", "libfaketime"], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "--extract", str(package), str(folder)], check=True)
        found = sorted(folder.rglob("libfaketimeMT.so.1"))
    return found[0]


@pytest.mark.rehearsal("a broker's clock")
async def test_a_brokers_clock_runs_ahead(drill: Drill, tmp_path: Path) -> None:
    """The clock of the ordering leader jumps ahead: all workers raise an alarm, and log time runs at most a minute ahead of theirs."""
    w1, _ = await drill.start("w1", "w2")
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "LD_PRELOAD": str(_libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_CACHE_DURATION": "1",  # a process that reads the file at each look at its clock has no time for anything else
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }.items():
            patch.setitem(os.environ, name, value)
        await asyncio.to_thread(drill.brokers.stop, 2)
        await asyncio.to_thread(drill.brokers.start, 2)
    make_program(drill.programs / "chronyc", f"echo +0 > {offset}; :")
    try:
        async with drill.load() as load:
            await drill.in_sync()
            await drill.move_leader(2)
            await load.until(50)
            drill.strikes()
            offset.write_text(f"+{AHEAD_S}\n")
            await drill.anomaly(
                lambda: "clock alarm: the log's append time is " in w1.messages,
                "clock alarm: the log's append time is ",
                "notary_log_clock_skew_seconds",
                "NotaryClockSkewed",
            )
            assert await drill.metric(w1, "notary_log_clock_skew_seconds ") > AHEAD_S / 2
            await load.until(50)
            await drill.follow()

            async def right() -> bool:
                return abs(await drill.metric(w1, "notary_log_clock_skew_seconds ")) < 10 and await drill.ready()

            await drill.over(right, "notary_log_clock_skew_seconds")
            await load.until(50)
    finally:
        await asyncio.to_thread(drill.brokers.stop, 2)
        await asyncio.to_thread(drill.brokers.start, 2)
    await drill.in_sync()
    await drill.verify()
