"""A minimal notary that is honest by the rules of `tests/checkers`, with real receipts; the tests falsify its answers."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loadtest.openloop.checker import Checker, ReceivedDecision
from loadtest.openloop.generate import PlannedSubmission, generate
from loadtest.openloop.plan import Mix
from loadtest.rig.generate import party_key
from loadtest.rig.signing import NOTARY, PARTY, SubmissionSigner
from notary.decision import leaf
from notary.receipts import Issuer
from notary.receipts.note import VerifierKey
from notary.tree import Tree, TreeView, leaf_hash
from notary.verify import NotVerified, decision_of, verify_receipt
from tests.checkers.precedence import expected_reason, hashed

ORIGIN = "notary.example/honest"
LOG_TIME = 1_760_000_000_000
BUSY = Mix(submission_requests=3, inputs=2, inputs_distribution="poisson", double_spends=0.3, references=0.3, windows=0.3, retries=0.2)
"""A mix in which every kind of event happens within a few submissions."""


def asked(count: int, mix: Mix = BUSY, seed: str = "s") -> list[PlannedSubmission]:
    """Returns the submissions of one load process."""
    return list(generate(mix, seed, count, SubmissionSigner(NOTARY, PARTY, party_key().sign)))


class Honest:
    """A notary that decides requests in the order in which they arrive."""

    def __init__(self, position_first: int = 0) -> None:
        self.position_next = position_first
        self._decided: dict[str, dict[str, Any]] = {}
        self._consumer: dict[str, str] = {}
        self._tree = Tree()
        self._view = TreeView(0, [], _never)
        self._key = Ed25519PrivateKey.from_private_bytes(bytes(32))
        self._issuer = Issuer(ORIGIN, self._key, lambda: self._view)

    @property
    def verifier_key(self) -> VerifierKey:
        """The key that verifies its receipts."""
        return VerifierKey(ORIGIN, self._key.public_key().public_bytes_raw())

    def verify(self, returned: ReceivedDecision) -> str | None:
        """Verify a receipt, with the result that a checker expects."""
        decision = msgspec.to_builtins(returned)
        try:
            verify_receipt(decision.pop("receipt"), decision, self.verifier_key)
        except NotVerified as problem:
            return problem.reason
        return None

    def answer(self, asked: PlannedSubmission, *, receipts: bool = False) -> list[ReceivedDecision]:
        """Returns its decisions; receipts only for the first 256 of all."""
        requests = json.loads(asked.body)["requests"]
        ids = [asked.ids[start : start + 32].hex() for start in range(0, len(asked.ids), 32)]
        decisions = [dict(self._decide(id_, request)) for id_, request in zip(ids, requests, strict=True)]
        if receipts:
            for decision in decisions:
                decision["receipt"] = json.loads(self._issuer.receipt_json(decision["position"]))
        return msgspec.convert(decisions, list[ReceivedDecision])

    def _decide(self, id_: str, request: dict[str, Any]) -> dict[str, Any]:
        if id_ not in self._decided:
            log_time = LOG_TIME + self.position_next // 2
            reason, conflicts = expected_reason(request, self._consumer, log_time)
            outcome = "rejected" if reason else "committed"
            decision = {"transaction_id": id_, "position": self.position_next, "outcome": outcome, "reason": reason}
            self._decided[id_] = decision | {"conflicts": conflicts, "log_time": log_time}
            self.position_next += 1
            if reason is None:
                self._consumer.update(dict.fromkeys(request.get("inputs", ()), hashed(id_)))
            if self.position_next <= 250:
                self._tree.append([leaf_hash(leaf(decision_of(self._decided[id_])))])
                self._view = TreeView(self._tree.size, self._tree.edge, _never)
        return self._decided[id_]


def checked(answered: Iterable[tuple[PlannedSubmission, list[ReceivedDecision]]]) -> list[str]:
    """Returns the violations that a checker without receipts finds in these answers, in their order."""
    checker = Checker(receipts=False)
    for one, answers in answered:
        checker.answered(one, answers, checker.position_highest)
    checker.settle()
    return checker.violations


def _never(level: int, index: int) -> list[list[bytes]]:
    raise AssertionError("a tree of less than 256 leaves has no full tile")
