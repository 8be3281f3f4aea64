"""Settings of the joiner: limits, timeouts and intervals of one worker. None of them changes a decision (R6). Pure."""

from msgspec import Struct

from ordering.settings import Fixed, Positive, Seconds


class JoinerLimits(Struct, frozen=True):
    """Limits and timeouts of the core."""

    hole_timeout_ms: Positive = 1_500
    worker_timeout_ms: Positive = 30_000
    buffer_bytes_max: Positive = 128 << 20
    # A silent incarnation is fenced only while payloads in memory cost this much, or a quarter of their limit, or while one of them makes a
    # restart read more than this number of payloads of its partition again: else a fence is of no use.
    fence_bytes_min: Fixed[int] = 32 << 20
    reread_records_max: Fixed[int] = 10_000
    queue_ids_max: Fixed[int] = 500_000
    # About 5 ms of work: a longer step blocks the event loop, and is no cheaper for each request. A batch is never divided.
    step_requests_max: Fixed[int] = 250
    step_states_max: Fixed[int] = 1_250
    # A batch with a content of this size or more is large. It takes milliseconds, so it gets a step of its own, after `Joiner.prepare`.
    large_bytes: Fixed[int] = 128 << 10
    fills_proposed_max: Fixed[int] = 64
    fill_scan_records_max: Fixed[int] = 4_096


class DriverSettings(Struct, frozen=True):
    """Intervals, timeouts and clock limits of the driver."""

    unreachable_ms: Positive = 3_000
    clock_behind_ms_max: Positive = 600_000
    clock_ahead_ms_max: Positive = 31 * 86_400_000  # a notary may be idle for a month
    clock_accepted: Fixed[bool] = False  # an operator has confirmed the clock, for one start (`--accept-clock`)
    clock_alarm_ms: Fixed[int] = 60_000
    poll_ms: Fixed[int] = 50
    watch_ms: Fixed[int] = 1_000
    stall_ms: Fixed[int] = 10_000
    interrupted_after_ms: Fixed[int] = 2_000  # a process that did not run for this time counts as interrupted
    contradiction_ms: Fixed[int] = 10_000  # ten times the Kafka client's metadata age: by then other brokers have replied too

    unreachable_s = Seconds("unreachable_ms")
    poll_s = Seconds("poll_ms")
    watch_s = Seconds("watch_ms")
    stall_s = Seconds("stall_ms")
    interrupted_after_s = Seconds("interrupted_after_ms")
    contradiction_s = Seconds("contradiction_ms")


class SenderSettings(Struct, frozen=True):
    """The sender's limits and times."""

    data_centre: str = ""  # payloads go to leaders there; empty: to any
    append_wait_ms_max: Positive = 5_000
    in_flight_max: Fixed[int] = 4
    unapplied_max: Fixed[int] = 2  # batches that the log has acknowledged and this worker has not applied; more wait in the queue
    batch_bytes_early: Fixed[int] = 256 << 10  # with another batch in flight, wait until this much is gathered
    reopen_wait_ms: Fixed[int] = 500

    append_wait_s_max = Seconds("append_wait_ms_max")
    reopen_wait_s = Seconds("reopen_wait_ms")


class QueueLimits(Struct, frozen=True):
    """The limits of the queue, of a batch, and of the attempts for one submission."""

    pending_requests_max: Positive = 40_000
    pending_bytes_max: Positive = 64 << 20
    pending_ms_max: Positive = 3_000  # at the rate of the last seconds; at least one batch is admitted
    batch_bytes_max: Fixed[int] = 512 << 10
    batch_requests_max: Fixed[int] = 2_000
    attempts_max: Fixed[int] = 20

    pending_s_max = Seconds("pending_ms_max")
