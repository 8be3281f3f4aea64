// The scenario of test_clients.py, through the Go client that openapi-generator generates (package openapi).
package main

import (
	"context"
	"encoding/json"
	"os"

	"notary.example/reader/openapi"
)

func members(decision *openapi.Decision) map[string]any {
	conflicts := []map[string]any{}
	for _, each := range decision.Conflicts {
		var kind openapi.Kind = each.Kind
		conflicts = append(conflicts, map[string]any{"state": each.State, "kind": kind, "consumed_by": each.ConsumedBy})
	}
	var position, logTime int64 = decision.Position, decision.LogTime
	var outcome openapi.Outcome = decision.Outcome
	var reason *openapi.Reason = decision.Reason.Get()
	found := map[string]any{
		"transaction_id": decision.TransactionId, "position": position, "outcome": outcome, "reason": reason,
		"conflicts": conflicts, "log_time": logTime,
	}
	if receipt, has := decision.GetReceiptOk(); has {
		found["receipt"] = *receipt
	}
	return found
}

func main() {
	var from given
	check(json.NewDecoder(os.Stdin).Decode(&from))
	configuration := openapi.NewConfiguration()
	configuration.Servers = openapi.ServerConfigurations{{URL: os.Args[1]}}
	notary := openapi.NewAPIClient(configuration).DefaultAPI
	ctx := context.Background()

	first := openapi.NewRequest(from.ContentHash)
	first.SetInputs(from.Inputs)
	first.SetReferences(from.References)
	first.SetTimeWindow(*openapi.NewWindow(*openapi.NewNullableInt64(&from.From), *openapi.NewNullableInt64(nil)))
	second := openapi.NewRequest(from.SecondContentHash)
	second.SetInputs(from.Inputs[:1])
	submission := openapi.NewSubmission(from.Party, from.Signature, []openapi.Request{*first, *second})

	early, _, err := notary.Submit(ctx).Submission(*submission).Prefer("wait=0").Receipts(false).Execute()
	check(err)
	undecided := 0
	for _, each := range early.Decisions {
		if each == nil {
			undecided++
		}
	}
	submitted, _, err := notary.Submit(ctx).Submission(*submission).Execute()
	check(err)
	decisions := []map[string]any{}
	for _, each := range submitted.Decisions {
		decisions = append(decisions, members(each))
	}
	transaction, _, err := notary.Transaction(ctx, from.Transaction).Wait(1).Execute()
	check(err)
	receipt, _, err := notary.Receipt(ctx, from.Transaction).Execute()
	check(err)
	state, _, err := notary.State(ctx, from.Inputs[0]).Execute()
	check(err)
	about, _, err := notary.Notary(ctx).Execute()
	check(err)
	submission.SetSignature(from.WrongSignature)
	_, _, err = notary.Submit(ctx).Submission(*submission).Execute()
	problem := err.(*openapi.GenericOpenAPIError).Model().(openapi.Problem)

	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"undecided":   undecided,
		"decisions":   decisions,
		"transaction": members(transaction),
		"receipt":     receipt,
		"state":       map[string]any{"state": state.State, "consumed_by": state.ConsumedBy.Get(), "position": state.Position.Get()},
		"notary":      map[string]any{"name": about.Name, "key": about.Keys[0].VerifierKey, "requests": about.Limits["requests"]},
		"problem":     map[string]any{"status": problem.Status, "type": problem.Type},
	}))
}
