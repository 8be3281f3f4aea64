// The scenario of test_clients.py, through openapi-fetch and the types that openapi-typescript generates (./schema).
import createClient from "openapi-fetch";
import { given, url } from "./given";
import type { components, paths } from "./schema";

type Decision = components["schemas"]["Decision"];
type Request = components["schemas"]["Request"];

const members = ({ transaction_id, position, outcome, reason, conflicts, log_time, receipt }: Decision) => {
  const committed: boolean = outcome === "committed";
  if (committed !== (reason === null)) throw new Error(`${outcome}, with the reason ${reason}`);
  const listed = conflicts.map(({ state, kind, consumed_by }) => ({ state, kind, consumed_by }));
  return { transaction_id, position, outcome, reason, conflicts: listed, log_time, receipt };
};

const checked = <Data, Problem>({ data, error }: { data?: Data; error?: Problem }): Data => {
  if (data === undefined) throw new Error(JSON.stringify(error));
  return data;
};

const notary = createClient<paths>({ baseUrl: url });
const first: Request = {
  inputs: given.inputs,
  references: given.references,
  time_window: { from: given.from, until: null },
  content_hash: given.content_hash,
};
const second: Request = { inputs: given.inputs.slice(0, 1), content_hash: given.second_content_hash };
const body = { party: given.party, signature: given.signature, requests: [first, second] };
const path = { id: given.transaction };

const main = async () => {
  const header = { Prefer: "wait=0" };
  const early = checked(await notary.POST("/v1/submissions", { body, params: { header, query: { receipts: false } } }));
  const submitted = checked(await notary.POST("/v1/submissions", { body }));
  const transaction = checked(await notary.GET("/v1/transactions/{id}", { params: { path, query: { wait: 1 } } }));
  const receipt = checked(await notary.GET("/v1/transactions/{id}/receipt", { params: { path }, parseAs: "text" }));
  const state = checked(await notary.GET("/v1/states/{ref}", { params: { path: { ref: given.inputs[0] } } }));
  const about = checked(await notary.GET("/v1/notary"));
  const refused = await notary.POST("/v1/submissions", { body: { ...body, signature: given.wrong_signature } });
  const problem = refused.error!;
  const found = {
    undecided: early.decisions.filter((each) => each === null).length,
    decisions: submitted.decisions.map((each) => members(each!)),
    transaction: members(transaction),
    receipt,
    state,
    notary: { name: about.name, key: about.keys[0]!.verifier_key, requests: about.limits["requests"] },
    problem: { status: problem.status, type: problem.type },
  };
  console.log(JSON.stringify(found));
};

void main();
