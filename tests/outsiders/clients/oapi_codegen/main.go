// The scenario of test_clients.py, through the client that oapi-codegen generates (client.gen.go).
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
)

func conflictsOf(decision *Decision) []map[string]any {
	conflicts := []map[string]any{}
	for _, each := range decision.Conflicts {
		var kind Kind = each.Kind
		if !kind.Valid() {
			check(fmt.Errorf("kind %q", kind))
		}
		conflicts = append(conflicts, map[string]any{"state": each.State, "kind": kind, "consumed_by": each.ConsumedBy})
	}
	return conflicts
}

func decoded(text string) []byte {
	found, err := base64.StdEncoding.DecodeString(text)
	check(err)
	return found
}

func members(decision *Decision) map[string]any {
	var position, logTime int64 = decision.Position, decision.LogTime
	var outcome Outcome = decision.Outcome
	var reason *Reason = decision.Reason
	if !outcome.Valid() || (reason != nil && !reason.Valid()) {
		check(fmt.Errorf("outcome %q, reason %v", outcome, reason))
	}
	found := map[string]any{
		"transaction_id": decision.TransactionId, "position": position, "outcome": outcome, "reason": reason,
		"conflicts": conflictsOf(decision), "log_time": logTime,
	}
	if decision.Receipt != nil {
		found["receipt"] = *decision.Receipt
	}
	return found
}

func main() {
	var from given
	check(json.NewDecoder(os.Stdin).Decode(&from))
	notary, err := NewClientWithResponses(os.Args[1])
	check(err)
	ctx := context.Background()
	inputs, references := from.Inputs, from.References
	second := inputs[:1]
	submission := Submission{Party: from.Party, Signature: decoded(from.Signature), Requests: []Request{
		{Inputs: &inputs, References: &references, TimeWindow: &Window{From: &from.From}, ContentHash: from.ContentHash},
		{Inputs: &second, ContentHash: from.SecondContentHash},
	}}

	noWait, noReceipts := "wait=0", false
	early, err := notary.SubmitWithResponse(ctx, &SubmitParams{Prefer: &noWait, Receipts: &noReceipts}, submission)
	check(err)
	undecided := 0
	for _, each := range early.JSON202.Decisions {
		if each == nil {
			undecided++
		}
	}
	submitted, err := notary.SubmitWithResponse(ctx, &SubmitParams{}, submission)
	check(err)
	decisions := []map[string]any{}
	for _, each := range submitted.JSON200.Decisions {
		decisions = append(decisions, members(each))
	}
	wait := 1
	transaction, err := notary.TransactionWithResponse(ctx, from.Transaction, &TransactionParams{Wait: &wait})
	check(err)
	receipt, err := notary.ReceiptWithResponse(ctx, from.Transaction, &ReceiptParams{})
	check(err)
	state, err := notary.StateWithResponse(ctx, inputs[0])
	check(err)
	about, err := notary.NotaryWithResponse(ctx)
	check(err)
	submission.Signature = decoded(from.WrongSignature)
	refused, err := notary.SubmitWithResponse(ctx, &SubmitParams{}, submission)
	check(err)
	problem := refused.ApplicationproblemJSON403

	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"undecided":   undecided,
		"decisions":   decisions,
		"transaction": members(transaction.JSON200),
		"receipt":     string(receipt.Body),
		"state":       map[string]any{"state": state.JSON200.State, "consumed_by": state.JSON200.ConsumedBy, "position": state.JSON200.Position},
		"notary":      map[string]any{"name": about.JSON200.Name, "key": about.JSON200.Keys[0].VerifierKey, "requests": about.JSON200.Limits["requests"]},
		"problem":     map[string]any{"status": problem.Status, "type": problem.Type},
	}))
}
