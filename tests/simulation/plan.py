"""The plan of one seed: the number of workers, the behaviour of network and disks, and all faults. Everything is drawn here."""

import random
from typing import Final

import msgspec

FAULTS_S: Final = 25.0
"""The usual length of the fault phase, in seconds; after that everything heals, and progress is demanded."""
FAULTS_S_LONG: Final = (70.0, 300.0)
"""The range of the fault phase, in seconds, in plans so long that incarnations grow old."""
HEALED_S: Final = 240.0
"""Virtual seconds that the healed system has to decide everything that was submitted."""
QUOTA_MIN, QUOTA_MAX = 8, 30
"""The requests a second in a plan with quotas.

Every call costs quota, also a retry. So submissions are smaller than the quota, and a burst of clients gets the larger one, or it would
take for ever.
"""
AIMED: Final = ("acknowledged", "shown", "leaderless", "unused", "unordered", "ahead", "kept", "held", "unread", "examined")
"""The kinds of aimed losses (`aimed`)."""
CLOCK_STANDS_AT_MS: Final = 5_000
"""The brokers' clock stops at multiples of this."""


class AppendFates(msgspec.Struct, frozen=True):
    """The probability of each fate of an append, and the mean delay of a record in seconds."""

    lost: float
    applied_and_failed: float
    late: float
    repeated: float
    delay_s: float


class Plan(msgspec.Struct, frozen=True):
    """All draws that are made from a seed before the first event."""

    seed: int
    workers: int
    partitions: int
    clients: int
    submissions: int
    states: int
    """The number of states from which the requests choose: the fewer, the more conflicts."""
    requests_max: int
    hole_timeout_ms: int
    worker_timeout_ms: int
    buffer_bytes_max: int
    queue_ids_max: int
    step_requests_max: int
    pending_requests_max: int
    checkpoint_interval_ms: int
    append_timeout_s: float
    fates: AppendFates
    reader_lag_s: float
    """The mean lag of one reader in one topic-partition, in seconds; the lag is drawn again and again."""
    records_per_poll_max: int
    client_loss: float
    """The probability that a call or its answer is lost."""
    skews_ms: tuple[int, ...]
    """The error of each worker's wall clock, in milliseconds."""
    clock_jumps: bool
    clocks_stand: int
    """The number of times that the brokers' clock stops for a while."""
    crashes: int
    machine_crashes: int
    """Crashes of a machine, which lose whatever the disk had not flushed."""
    crash_at_steps: float
    """The probability that a worker dies at any one call of its log or its disk."""
    stops: int
    """Orderly shutdowns (SIGTERM)."""
    stalls: int
    """Readers that stall without an error."""
    cut_offs: int
    """Workers that are cut off from the log."""
    leaderless: int
    cuts: int
    """The number of times that the log shows less than it has, as an outdated broker would."""
    snapshots: int
    wiped: int
    full_disks: int
    altered_rows: int
    duplicate_name: bool
    forgers: int
    faults_s: float
    in_bursts: bool
    """All clients submit in a few bursts, without pauses."""
    late_registers: int
    """Register records of a process that is gone, which reach the log late."""
    hostile: int
    """Calls of clients that must be rejected."""
    quota_per_s: int
    """The number of requests a second that a party may send to one worker; 0 for no limit."""
    readings: int
    """The number of times that a reader fetches a checkpoint with its tiles, a receipt or a state."""
    diverged: int
    """Rows of consumed states that are changed; never in a plan whose log loses records."""
    damages: int
    """The number of times that the brokers lose the end of one or more topic-partitions, and grow again."""
    pauses: int
    """Processes that are suspended for a while, as by SIGSTOP."""
    rotations: int
    """The number of times that the owner puts another key in force, or offers a former one again."""
    grown: int
    """The number of times that the owner adds payload partitions."""
    retired: int
    """The number of times that the owner ends an incarnation."""
    payload_s: float
    """The extra delay of a payload compared with an entry, in seconds; more than hole_timeout."""
    wrong_clocks: int
    """Workers that start with a clock that is wrong by years."""
    jump_of_years: bool
    """All clocks, or the brokers' alone, jump by more than a year, once; then an operator confirms the workers' clocks."""
    aimed: str = ""
    """The kind of loss that waits for its moment (`aimed`); empty for none."""
    aimed_losses: int = 0
    votes_repeated: bool = False
    """In a plan that changes a worker's consumed states: whether its vote is copied into the log again after it was outvoted."""
    misnamed: int = 0
    """Workers that start with the configuration of another notary."""
    salvages: int = 0
    """The number of times that the log loses its end and is salvaged (`salvaging`)."""
    broken: int = 0
    """The number of times that a worker with the notary's key orders contents that differ from their entries."""
    stolen_names: int = 0
    """The number of times that a thief of the notary's key orders a batch under the incarnation of a worker."""
    wrong_votes: int = 0
    """The number of wrong roots of a worker that the owner then retires; none in a plan whose log loses records."""
    floods: int = 0
    """The number of times that somebody without a key writes hundreds of records at once."""
    pause_at_steps: float = 0.0
    """The probability that a worker is suspended within any one call of its log or its disk."""
    activations: int = 0
    """The number of times that the owner activates format version 2."""
    trims: int = 0
    """The number of times that the owner writes a trim record, where format version 2 is active."""
    frees: int = 0
    """The number of times that the owner frees payloads that two snapshots do not need."""
    late_keys: bool = False
    """In a plan with rotations: whether the workers get a key's files only after its record."""

    @property
    def loses(self) -> bool:
        """True if the log may lose acknowledged records."""
        return bool(self.damages or self.aimed)


def plan(seed: int) -> Plan:
    """Returns the plan of a seed.

    Swarm testing: each seed has only some kinds of faults, so that common faults do not hide rare combinations.
    """
    draw = random.Random(f"plan {seed}")

    def some(chance: float, most: int) -> int:
        return draw.randint(1, most) if draw.random() < chance else 0

    def rate(chance: float, most: float) -> float:
        return most * draw.random() ** 2 if draw.random() < chance else 0.0

    # Settings that were added later are drawn from a generator of their own, so that the rest of each plan stays the same.
    load = random.Random(f"load {seed}")
    kind = load.random()
    long, in_bursts = kind < 0.05, 0.05 <= kind < 0.12
    workers = draw.choice([1, 2, 2, 3, 3, 3, 4])
    calm = draw.random() < 0.05
    fates = AppendFates(
        lost=rate(0.5, 0.2),
        applied_and_failed=rate(0.5, 0.2),
        late=rate(0.5, 0.2),
        repeated=rate(0.5, 0.3),
        delay_s=draw.choice([0.001, 0.01, 0.05, 0.3]),
    )
    # A generator of its own, so that the draws before it stay the same.
    apart = random.Random(f"rare {seed}")
    lost = not calm and apart.random() < 0.1
    diverged = not calm and not lost and workers >= 3 and apart.random() < 0.2
    # Settings that were added with the log that certifies itself (R10).
    log = random.Random(f"log {seed}")
    damages = log.choice([1, 1, 2, 3]) if lost or (not calm and not diverged and log.random() < 0.2) else 0
    years = log.random()
    usual = Plan(
        seed=seed,
        workers=workers,
        partitions=draw.choice([1, 1, 2, 3, 5]),
        clients=draw.randint(1, 6),
        submissions=draw.randint(5, 40),
        states=draw.choice([2, 5, 20, 200]),
        requests_max=40 if draw.random() < 0.04 else draw.choice([1, 1, 3, 6]),
        hole_timeout_ms=draw.choice([50, 300, 1_500]),
        worker_timeout_ms=draw.choice([200, 2_000, 10_000]),
        buffer_bytes_max=draw.choice([500, 5_000, 128 << 20]),
        queue_ids_max=draw.choice([2, 20, 500_000]),
        step_requests_max=draw.choice([1, 3, 2_000]),
        pending_requests_max=draw.choice([4, 30, 40_000]),
        checkpoint_interval_ms=draw.choice([200, 1_000, 5_000]),
        append_timeout_s=draw.choice([0.5, 3.0, 10.0]),
        fates=AppendFates(0, 0, 0, 0, fates.delay_s) if calm else fates,
        reader_lag_s=draw.choice([0.0, 0.005, 0.05, 1.0]),
        records_per_poll_max=draw.choice([1, 3, 100]),
        client_loss=0.0 if calm else rate(0.5, 0.3),
        skews_ms=tuple([draw.choice([0, 0, 5, -800, 3_000, -100_000, 100_000]) for _ in range(workers)]),
        clock_jumps=draw.random() < 0.3,
        clocks_stand=some(0.3, 2),
        crashes=0 if calm else some(0.5, 4),
        machine_crashes=0 if calm else some(0.3, 3),
        crash_at_steps=0.0 if calm else rate(0.4, 0.02),
        stops=some(0.3, 2),
        stalls=some(0.2, 2),
        cut_offs=0 if calm else some(0.3, 2),
        leaderless=0 if calm else some(0.3, 3),
        cuts=0 if calm else some(0.15, 2),
        snapshots=0 if calm else some(0.2, 2),
        wiped=0 if calm else some(0.2, 1),
        full_disks=0 if calm else some(0.15, 1),
        altered_rows=0 if calm else some(0.1, 1),
        diverged=int(diverged),
        damages=damages,
        pauses=log.randint(1, 3) if log.random() < 0.2 else 0,
        rotations=log.choice([1, 1, 2, 3]) if log.random() < 0.2 else 0,
        grown=log.choice([1, 1, 2]) if log.random() < 0.15 else 0,
        retired=log.randint(1, 3) if log.random() < 0.15 else 0,
        payload_s=log.uniform(1.2, 4) if log.random() < 0.08 else 0.0,
        wrong_clocks=log.randint(1, 2) if years < 0.1 else 0,
        jump_of_years=0.1 <= years < 0.13 and not diverged,
        duplicate_name=not calm and draw.random() < 0.15,
        forgers=max(some(0.2, 12), log.randint(0, 8) if damages or diverged else 0),
        faults_s=FAULTS_S,
        in_bursts=in_bursts,
        late_registers=0 if calm or load.random() >= 0.1 else load.randint(1, 3),
        hostile=load.randint(2, 12) if load.random() < 0.3 else 0,
        quota_per_s=load.choice([QUOTA_MIN, QUOTA_MAX]) if load.random() < 0.08 else 0,
        readings=load.randint(1, 8) if load.random() < 0.5 else 0,
    )
    slow_s = usual.payload_s * usual.hole_timeout_ms / 1000
    usual = msgspec.structs.replace(usual, payload_s=slow_s if slow_s < usual.append_timeout_s / 2 else 0.0)
    # The latest settings, again from generators of their own.
    named, aims = random.Random(f"named {seed}"), random.Random(f"aims {seed}")
    if not calm and named.random() < 0.1:
        usual = msgspec.structs.replace(usual, misnamed=named.randint(1, 2))
    if not calm and not diverged and aims.random() < 0.12:
        usual = msgspec.structs.replace(usual, aimed=aims.choice(AIMED[:-3]), aimed_losses=aims.randint(1, 3))
    elif not calm and not diverged and random.Random(f"unread {seed}").random() < 0.04:
        usual = msgspec.structs.replace(usual, aimed="unread", aimed_losses=1, queue_ids_max=2)
    elif not calm and not diverged and random.Random(f"held {seed}").random() < 0.04:
        usual = msgspec.structs.replace(usual, aimed="held", aimed_losses=2)
    if not calm and not diverged and random.Random(f"broken {seed}").random() < 0.06:
        usual = msgspec.structs.replace(usual, broken=2)
    usual = _with_later_faults(usual, calm=calm)
    usual = msgspec.structs.replace(usual, votes_repeated=diverged and aims.random() < 0.5)
    if usual.loses or diverged:
        # In these plans some wrong decisions are expected failures (`expected`); checkpoints and tiles could not be checked, so none
        # are read.
        usual = msgspec.structs.replace(usual, readings=0)
    if usual.requests_max > QUOTA_MIN:
        usual = msgspec.structs.replace(usual, quota_per_s=0)
    if long:
        return msgspec.structs.replace(
            usual,
            faults_s=load.uniform(*FAULTS_S_LONG),
            worker_timeout_ms=load.choice([usual.worker_timeout_ms, 30_000]),
            # No incarnation grows old where every append may fail, or where every call may be the process's last.
            fates=usual.fates if load.random() < 0.3 else AppendFates(0, 0, 0, 0, fates.delay_s),
            crash_at_steps=usual.crash_at_steps * 0.1,
            late_registers=0 if calm or load.random() < 0.3 else load.randint(1, 4),
        )
    if in_bursts:
        clients = load.randint(30, 60)
        workers = min(workers, load.choice([1, 1, 2, 3]))
        return msgspec.structs.replace(
            usual,
            workers=workers,
            skews_ms=usual.skews_ms[:workers],
            diverged=usual.diverged if workers >= 3 else 0,
            clients=clients,
            submissions=clients * load.randint(2, 4),
            requests_max=load.choice([1, 1, 3, 6]),
            quota_per_s=QUOTA_MAX if usual.quota_per_s else 0,
            fates=msgspec.structs.replace(usual.fates, delay_s=load.choice([0.01, 0.1, 0.3])),  # so arrivals meanwhile share a batch
            pending_requests_max=load.choice([12, 40, 40_000, 40_000]),
        )
    return usual


def _with_later_faults(usual: Plan, *, calm: bool) -> Plan:
    """Returns the plan with the faults that were added last, each from a generator of its own: the rest of each plan stays the same."""

    def some(what: str, chance: float, most: int) -> int:
        draw = random.Random(f"{what} {usual.seed}")
        return draw.randint(1, most) if not calm and draw.random() < chance else 0

    if not usual.diverged and not usual.aimed and some("examined", 0.04, 1):
        usual = msgspec.structs.replace(usual, aimed="examined", aimed_losses=3)
    activations = some("activations", 0.08, 2)
    usual = msgspec.structs.replace(
        usual,
        stolen_names=some("stolen names", 0.08, 4),
        wrong_votes=0 if usual.diverged or usual.loses else some("wrong votes", 0.08, 2),
        floods=some("floods", 0.04, 2),
        pause_at_steps=some("pauses at steps", 0.06, 10) / 1_000,
        activations=activations,
        trims=activations and some("trims", 0.5, 3),
        frees=activations and some("frees", 0.7, 3),
        late_keys=bool(usual.rotations and some("late keys", 0.3, 1)),
    )
    if usual.floods:
        draw = random.Random(f"memory {usual.seed}")
        usual = msgspec.structs.replace(
            usual, records_per_poll_max=draw.choice([100, 1_000]), buffer_bytes_max=draw.choice([500, 5_000, 128 << 20])
        )
    return usual
