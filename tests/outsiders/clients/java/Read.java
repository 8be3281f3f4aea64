import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.DefaultApi;
import org.openapitools.client.model.Conflict;
import org.openapitools.client.model.Decision;
import org.openapitools.client.model.Decisions;
import org.openapitools.client.model.Kind;
import org.openapitools.client.model.Notary;
import org.openapitools.client.model.Outcome;
import org.openapitools.client.model.Problem;
import org.openapitools.client.model.Reason;
import org.openapitools.client.model.Request;
import org.openapitools.client.model.State;
import org.openapitools.client.model.Submission;
import org.openapitools.client.model.Window;

/** The scenario of test_clients.py, through the Java client that openapi-generator generates. */
public class Read {
  static Map<String, Object> members(Decision decision) {
    List<Object> conflicts = new ArrayList<>();
    for (Conflict each : decision.getConflicts()) {
      Kind kind = each.getKind();
      conflicts.add(object("state", each.getState(), "kind", kind, "consumed_by", each.getConsumedBy()));
    }
    long position = decision.getPosition();
    long logTime = decision.getLogTime();
    Outcome outcome = decision.getOutcome();
    Reason reason = decision.getReason();
    Map<String, Object> found =
        object(
            "transaction_id", decision.getTransactionId(), "position", position, "outcome", outcome,
            "reason", reason, "conflicts", conflicts, "log_time", logTime);
    if (decision.getReceipt() != null) {
      found.put("receipt", decision.getReceipt());
    }
    return found;
  }

  static Map<String, Object> object(Object... members) {
    Map<String, Object> object = new LinkedHashMap<>();
    for (int at = 0; at < members.length; at += 2) {
      object.put((String) members[at], members[at + 1]);
    }
    return object;
  }

  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    JsonNode given = json.readTree(System.in);
    ApiClient client = new ApiClient();
    client.updateBaseUri(arguments[0]);
    DefaultApi notary = new DefaultApi(client);

    Request first = new Request().contentHash(given.get("content_hash").asText());
    given.get("inputs").forEach(each -> first.addInputsItem(each.asText()));
    given.get("references").forEach(each -> first.addReferencesItem(each.asText()));
    first.timeWindow(new Window().from(given.get("from").asLong()));
    String state = given.get("inputs").get(0).asText();
    Request second = new Request().addInputsItem(state).contentHash(given.get("second_content_hash").asText());
    Submission submission =
        new Submission()
            .party(given.get("party").asText())
            .signature(given.get("signature").asText())
            .addRequestsItem(first)
            .addRequestsItem(second);

    Decisions early = notary.submit(submission, false, "wait=0", null);
    long undecided = early.getDecisions().stream().filter(Objects::isNull).count();
    List<Object> decisions = new ArrayList<>();
    for (Decision each : notary.submit(submission, null, null, null).getDecisions()) {
      decisions.add(members(each));
    }
    String id = given.get("transaction").asText();
    Decision transaction = notary.transaction(id, 1);
    String receipt = notary.receipt(id, null);
    State consumed = notary.state(state);
    Notary about = notary.notary();
    Problem problem = null;
    try {
      notary.submit(submission.signature(given.get("wrong_signature").asText()), null, null, null);
    } catch (ApiException refused) {
      problem = json.readValue(refused.getResponseBody(), Problem.class);
    }

    System.out.println(
        json.writeValueAsString(
            object(
                "undecided", undecided,
                "decisions", decisions,
                "transaction", members(transaction),
                "receipt", receipt,
                "state",
                    object("state", consumed.getState(), "consumed_by", consumed.getConsumedBy(), "position", consumed.getPosition()),
                "notary",
                    object(
                        "name", about.getName(), "key", about.getKeys().get(0).getVerifierKey(),
                        "requests", about.getLimits().get("requests")),
                "problem", object("status", problem.getStatus(), "type", problem.getType()))));
  }
}
