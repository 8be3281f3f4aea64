"""Tests that both implementations of docs/formats.md agree on its constants."""

import joiner.applied
import joiner.history
import notary.decision
import ordering.ids
import ordering.records
import ordering.salvage
import ordering.signatures
import ordering.topics
import payload.request
import payload.submission
from spark_join import constants
from spark_join.log import restore


def test_constants_are_the_notarys() -> None:
    """Both sides have the same constants: a change on one side alone would make every log look wrong."""
    formats = (ordering.records.FORMAT_VERSION, ordering.records.RECORD_FORMAT, ordering.records.SALVAGE_FORMAT)
    assert formats == (constants.FORMAT_VERSION, constants.RECORD_FORMAT, constants.SALVAGE_FORMAT)
    assert constants.SALVAGE_BYTES_MAX == ordering.records.SALVAGE_BYTES_MAX
    assert constants.SENT_AT_AHEAD_MAX_MS == joiner.applied.SENT_AT_AHEAD_MAX_MS
    assert constants.VOTERS_MS == joiner.applied.VOTERS_MS
    assert constants.VIEWS_KEPT == joiner.history.HISTORY_KEPT
    domains = (ordering.signatures._RECORD_HEAD, ordering.signatures._FILL_HEAD, ordering.signatures._KEY_HEAD)
    assert domains == (constants.RECORD_DOMAIN, constants.FILL_DOMAIN, constants.LOG_KEY_DOMAIN)
    assert constants.SEAL_DOMAIN == ordering.signatures._SEAL_HEAD
    assert constants.TRANSACTION_DOMAIN == payload.request._TRANSACTION_DOMAIN
    assert constants.SUBMISSION_DOMAIN == payload.submission._SUBMISSION_DOMAIN
    assert (constants.LEAF_PREFIX, constants.LOST_PREFIX) == (ordering.salvage.LEAF_PREFIX, ordering.salvage.LOST_PREFIX)
    assert constants.CONFLICT_BYTES == ordering.salvage.CONFLICT_BYTES
    assert constants.ID_BYTES == ordering.ids.TRANSACTION_ID_BYTES
    assert constants.REQUESTS_MAX == payload.submission.REQUESTS_MAX
    assert constants.STATES_MAX == payload.request.INPUTS_AND_REFERENCES_MAX
    assert constants.PARTY_BYTES_MAX == payload.submission.PARTY_BYTES_MAX
    assert constants.NAME_BYTES_MAX == ordering.ids.NAME_BYTES_MAX
    assert constants.TIME_MAX_MS == payload.request.TIME_MAX_MS
    assert constants.INDEX_MAX == ordering.ids.INDEX_MAX
    assert (constants.OPEN_FROM_MS, constants.OPEN_UNTIL_MS) == (payload.request.OPEN_FROM_MS, payload.request.OPEN_UNTIL_MS)
    assert list(constants.OUTCOMES) == list(notary.decision.Outcome)
    assert list(constants.OUTCOMES.values()) == [reason or "committed" for reason in notary.decision.REASONS]
    assert tuple(notary.decision.Kind) == (constants.INPUT, constants.REFERENCE)


def test_restored_topics_are_as_the_notary_makes_them() -> None:
    """Both sides have the same topic settings: otherwise workers would reject, or lose, a restored log."""
    at_least = {name: str(value) for name, value in ordering.topics._AT_LEAST.items()}
    assert ordering.topics._FIXED | at_least == restore.TOPIC_SETTINGS
    assert restore.REPLICAS_WANTED == ordering.topics.REPLICATION_WANTED
