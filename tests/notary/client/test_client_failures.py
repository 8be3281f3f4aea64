"""For any sequence of failures the client sends identical bytes, and ends with the decisions or with OutcomeUnknown."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notary.client import Client, RetryPolicy, Signer, Unanswered
from tests.examples import some
from tests.notary.client.scripted import NAME, PARTY, PEM, VERIFIER_KEY, Notary, Worker, request, staged
from tests.notary.client.test_client import FAILURES

pytestmark = pytest.mark.seconds


QUICK = RetryPolicy(attempt_s_max=0.3, backoff_s_first=0.005, backoff_s_max=0.02)


def client_of(urls: Sequence[str]) -> Client:
    return Client(urls, PARTY, Signer.from_pem(PEM), notary_name=NAME, retry_policy=QUICK, verifier_keys=VERIFIER_KEY)


STEPS = st.lists(st.sampled_from([*FAILURES, "answer"]), max_size=4)


@settings(max_examples=some(40), deadline=None)
@given(scripts=st.lists(STEPS, min_size=1, max_size=3), count=st.integers(1, 4))
def test_failures_that_end_end_in_the_decisions(scripts: list[list[str]], count: int) -> None:
    """If the failures end before the deadline, the client returns the notary's decisions, each once."""
    notary = Notary()
    workers = [Worker(notary, script) for script in scripts]
    with staged(*workers) as urls, client_of(urls) as client:
        answers = client.submit([request(number) for number in range(count)], deadline_s=100)
    assert [(answer.transaction_id, answer.position) for answer in answers] == [
        (transaction_id, decision["position"]) for transaction_id, decision in notary.decisions.items()
    ]
    assert len({body for worker in workers for body in worker.bodies}) == 1


@settings(max_examples=some(15), deadline=None)
@given(scripts=st.lists(STEPS, min_size=1, max_size=2), then=st.sampled_from(FAILURES), count=st.integers(1, 4))
def test_failures_that_do_not_end_end_in_the_truth_or_unknown(scripts: list[list[str]], then: str, count: int) -> None:
    """If the failures do not end, the call ends with the decisions, or with OutcomeUnknown and only true answers in it."""
    notary = Notary()
    workers = [Worker(notary, script, then) for script in scripts]
    with staged(*workers) as urls, client_of(urls) as client:
        try:
            answers = tuple(client.submit([request(number) for number in range(count)], deadline_s=0.5))
        except Unanswered as problem:
            answers = problem.answers  # type: ignore[assignment]
            assert None in answers
    assert len(answers) == count
    for answer in answers:
        if answer is not None:
            assert notary.decisions[answer.transaction_id]["position"] == answer.position
    assert len({body for worker in workers for body in worker.bodies}) <= 1
