"""The scenario of test_clients.py, through the Python client that openapi-generator generates (`openapi_client`)."""

import json
import sys

from openapi_client import ApiClient, ApiException, Configuration, Decision, DefaultApi, Problem, Request, Submission, Window


def members(decision: Decision) -> dict[str, object]:
    """Returns the members of a decision as they stand in the contract's JSON."""
    conflicts = [{"state": each.state, "kind": each.kind, "consumed_by": each.consumed_by} for each in decision.conflicts]
    found = {
        "transaction_id": decision.transaction_id,
        "position": decision.position,
        "outcome": decision.outcome,
        "reason": decision.reason,
        "conflicts": conflicts,
        "log_time": decision.log_time,
    }
    return found if decision.receipt is None else {**found, "receipt": decision.receipt}


def main() -> None:
    """Run the scenario at the URL of the command line, with the values on stdin; print JSON."""
    given = json.load(sys.stdin)
    notary = DefaultApi(ApiClient(Configuration(host=sys.argv[1])))
    first = Request(
        inputs=given["inputs"],
        references=given["references"],
        time_window=Window.from_dict({"from": given["from"], "until": None}),
        content_hash=given["content_hash"],
    )
    second = Request(inputs=given["inputs"][:1], content_hash=given["second_content_hash"])
    submission = Submission(party=given["party"], signature=given["signature"], requests=[first, second])

    early = notary.submit(submission, prefer="wait=0", receipts=False)
    decisions = notary.submit(submission).decisions
    transaction = notary.transaction(given["transaction"], wait=1)
    receipt = notary.receipt(given["transaction"])
    state = notary.state(given["inputs"][0])
    about = notary.notary()
    submission.signature = given["wrong_signature"]
    try:
        notary.submit(submission)
    except ApiException as refused:
        problem = Problem.from_json(refused.body)
    found = {
        "undecided": early.decisions.count(None),
        "decisions": [members(each) for each in decisions],
        "transaction": members(transaction),
        "receipt": receipt,
        "state": {"state": state.state, "consumed_by": state.consumed_by, "position": state.position},
        "notary": {"name": about.name, "key": about.keys[0].verifier_key, "requests": about.limits["requests"]},
        "problem": {"status": problem.status, "type": problem.type},
    }
    print(json.dumps(found))


main()
