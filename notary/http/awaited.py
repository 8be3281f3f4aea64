"""`AwaitedDecisions`: the calls that wait for the decision of a transaction (long polls)."""

from collections.abc import Callable

from joiner import Ready
from ordering.ids import TransactionId


class AwaitedDecisions:
    """The calls that wait, by transaction. The driver passes each step that is durable to `applied`."""

    def __init__(self) -> None:
        self._waiting: dict[TransactionId, list[Callable[[], None]]] = {}

    def when_decided(self, transaction_id: TransactionId, call_back: Callable[[], None]) -> None:
        """Call `call_back` once, when a step decides the transaction on this worker."""
        self._waiting.setdefault(transaction_id, []).append(call_back)

    def forget(self, transaction_id: TransactionId, call_back: Callable[[], None]) -> None:
        """Do not call `call_back` any more."""
        waiting = self._waiting.get(transaction_id, [])
        if call_back in waiting:
            waiting.remove(call_back)
        if not waiting:
            self._waiting.pop(transaction_id, None)

    def applied(self, ready: Ready) -> None:
        """Call the call-backs of the transactions of this step."""
        if self._waiting:
            for batch in ready.batches:
                for request in batch.requests:
                    for decided in self._waiting.pop(request.transaction_id, ()):
                        decided()
