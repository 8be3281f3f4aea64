"""Repeats a test that failed while the machine was paused.

Virtual machines stop for seconds, and then time limits of a test pass though nothing is wrong. A thread notices that it did not run for
`PAUSE_S_MIN`. A test that fails without such a pause is not repeated, and the summary lists each one that was.
"""

import threading
import time

import pytest
from _pytest.runner import runtestprotocol

PAUSE_S_MIN = 1.0
RUNS_MAX = 3
_LOOK_S = 0.05
_REPEATED = "repeated after a pause, in seconds"


class Pauses:
    """The pauses of this process."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        threading.Thread(target=self._watch, name="pauses", daemon=True).start()

    def _watch(self) -> None:
        before_s = time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            now_s = time.monotonic()
            self._longest_s, before_s = max(self._longest_s, now_s - before_s), now_s

    def reset(self) -> None:
        """Forget earlier pauses."""
        self._longest_s = 0.0

    def longest_s(self) -> float:
        """Returns the longest pause since `reset`, in seconds."""
        time.sleep(2 * _LOOK_S)  # one that has just ended counts
        return self._longest_s


class Repeating:
    """The plugin."""

    def __init__(self) -> None:
        self._pauses = Pauses()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test, and again while it fails and the machine paused meanwhile, `RUNS_MAX` times at most."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for _ in range(RUNS_MAX):
            self._pauses.reset()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            if not any(report.failed for report in reports) or (pause_s := self._pauses.longest_s()) < PAUSE_S_MIN:
                break
            item.user_properties.append((_REPEATED, pause_s))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the repeated tests."""
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport) and report.when == "call":
                    for name, pause_s in report.user_properties:
                        if name == _REPEATED:
                            terminalreporter.write_line(f"REPEATED {report.nodeid}: the machine paused for {pause_s:.1f} s")
