"""`Readiness`: whether a worker may answer, and whether it admits submissions. Its parts give the reasons; this module orders them."""

from joiner import Driver, Sender
from notary.decision import Decision
from notary.self_check import SelfCheck
from ordering.errors import NotReady


class Readiness:
    """The readiness of one worker."""

    def __init__(self, self_check: SelfCheck, driver: Driver[Decision], sender: Sender[Decision]) -> None:
        self._self_check, self._driver, self._sender = self_check, driver, sender

    def serving_suspended(self) -> str | None:
        """Returns the reason why nothing may be answered from this worker's index; None when it may."""
        return self._self_check.serving_suspended() or self._driver.suspicion()

    def not_ready(self) -> str | None:
        """Returns the reason why this worker admits no submission now; None when it does."""
        return self.serving_suspended() or self._driver.not_ready() or self._sender.not_ready()

    def reasons(self) -> list[str]:
        """Returns all reasons why this worker is not ready, one for each part at most."""
        found = (self.serving_suspended(), self._driver.not_ready(), self._sender.not_ready())
        return [why for why in found if why is not None]

    def why_not_ready(self) -> NotReady | None:
        """Returns the error for a submission while the worker is not ready; None while it is."""
        return None if (why := self.not_ready()) is None else NotReady(why)

    def is_ready(self) -> bool:
        """Returns True if this worker admits submissions."""
        return self.not_ready() is None
