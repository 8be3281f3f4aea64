"""Tests the share of the machine that processes of others take."""

import subprocess
import sys
import time

import psutil
import pytest

from loadtest.rig.machine import OthersMeter, machine, own_cpu_seconds

pytestmark = pytest.mark.seconds

BURNT_S = 0.4
BURN = [sys.executable, "-c", f"import time\nwhile time.process_time() < {BURNT_S}: pass"]


def test_a_childs_time_is_our_own() -> None:
    """The CPU time of a child that has ended counts as our own."""
    before_s = own_cpu_seconds()
    subprocess.run(BURN, check=True)
    assert own_cpu_seconds() - before_s >= BURNT_S * 0.9


def test_the_time_of_another_process_is_not() -> None:
    """A process that is not our descendant counts as another's; other work on this machine can only add to it."""
    meter, began_s, before_s = OthersMeter(), time.monotonic(), own_cpu_seconds()
    # The shell ends at once and leaves the process to init; its pipe closes when that ends.
    subprocess.run(["sh", "-c", '"$0" "$@" &', *BURN], stdout=subprocess.PIPE, check=True)
    time.sleep(OthersMeter.SECONDS_MIN)
    share, took_s = meter.share(), time.monotonic() - began_s
    assert share is not None
    assert share * took_s * machine()["cores"] >= BURNT_S * 0.8
    assert own_cpu_seconds() - before_s < BURNT_S


def test_time_that_a_hypervisor_takes_is_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose hypervisor gives half of the processor to others is not quiet, though no process here uses it."""
    times = psutil.cpu_times()
    stolen_s = 0.0
    monkeypatch.setattr(psutil, "cpu_times", lambda: times._replace(steal=stolen_s))
    monkeypatch.setattr("loadtest.rig.machine.own_cpu_seconds", lambda: 0.0)
    meter, began_s = OthersMeter(), time.monotonic()
    time.sleep(OthersMeter.SECONDS_MIN)
    stolen_s = (time.monotonic() - began_s) * machine()["cores"] / 2
    assert meter.share() == pytest.approx(0.5, abs=0.1)


def test_a_short_period_has_the_share_of_the_one_before() -> None:
    """Results that are added right after another have its share, since a moment is too short to measure; the first has none."""
    meter = OthersMeter()
    assert meter.share() is None
    time.sleep(OthersMeter.SECONDS_MIN)
    share = meter.share()
    assert share is not None
    assert meter.share() == share
