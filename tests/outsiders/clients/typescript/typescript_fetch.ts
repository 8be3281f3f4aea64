// The scenario of test_clients.py, through the client that openapi-generator's typescript-fetch generates (./client).
import { Configuration, DefaultApi, ProblemFromJSON, ResponseError } from "./client";
import type { Decision, Request } from "./client";
import { given, url } from "./given";

const members = (decision: Decision) => {
  const { transactionId, position, outcome, reason, conflicts, logTime, receipt } = decision;
  const committed: boolean = outcome === "committed";
  if (committed !== (reason === null)) throw new Error(`${outcome}, with the reason ${reason}`);
  return {
    transaction_id: transactionId,
    position,
    outcome,
    reason,
    conflicts: conflicts.map(({ state, kind, consumedBy }) => ({ state, kind, consumed_by: consumedBy })),
    log_time: logTime,
    ...(receipt === undefined ? {} : { receipt }),
  };
};

const notary = new DefaultApi(new Configuration({ basePath: url }));
const first: Request = {
  inputs: new Set(given.inputs),
  references: new Set(given.references),
  timeWindow: { from: given.from, until: null },
  contentHash: given.content_hash,
};
const second: Request = { inputs: new Set(given.inputs.slice(0, 1)), contentHash: given.second_content_hash };
const submission = { party: given.party, signature: given.signature, requests: [first, second] };

const main = async () => {
  const early = await notary.submit({ submission, prefer: "wait=0", receipts: false });
  const submitted = await notary.submit({ submission });
  const transaction = await notary.transaction({ id: given.transaction, wait: 1 });
  const receipt = await notary.receipt({ id: given.transaction });
  const state = await notary.state({ ref: given.inputs[0] });
  const about = await notary.notary();
  const refused = await notary.submit({ submission: { ...submission, signature: given.wrong_signature } }).catch((error) => error as ResponseError);
  if (!(refused instanceof ResponseError)) throw new Error("a wrong signature was accepted");
  const problem = ProblemFromJSON(await refused.response.json());
  const found = {
    undecided: early.decisions.filter((each) => each === null).length,
    decisions: submitted.decisions.map((each) => members(each!)),
    transaction: members(transaction),
    receipt,
    state: { state: state.state, consumed_by: state.consumedBy, position: state.position },
    notary: { name: about.name, key: about.keys[0].verifierKey, requests: about.limits["requests"] },
    problem: { status: problem.status, type: problem.type },
  };
  console.log(JSON.stringify(found));
};

void main();
