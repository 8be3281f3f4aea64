"""What one seed means: how many workers, how the network and the disks behave, what breaks and when. All of it is drawn here."""

import random
from typing import Final

import msgspec

FAULTS_S: Final = 25.0
"""How long things break, mostly; after that everything heals, and progress is demanded."""
FAULTS_S_LONG: Final = (70.0, 300.0)
"""Some plans last so long that lives grow old in them."""
HEALED_S: Final = 240.0
"""Virtual seconds that the healed system has to decide all that was asked."""
QUOTA_MIN, QUOTA_MAX = 8, 30
"""Every call costs quota, also one that asks the same again: submissions are smaller, and a crowd has more, or it would take for ever."""
AIMED: Final = ("acknowledged", "shown", "leaderless", "unused", "unordered", "ahead", "kept", "unread")
"""The kinds of aimed losses, see there."""
CLOCK_STANDS_AT_MS: Final = 5_000
"""The brokers' clock stands still at multiples of this."""


class AppendFates(msgspec.Struct, frozen=True):
    """Of every append: how likely each fate is, and how long a record takes."""

    lost: float
    applied_and_failed: float
    late: float
    repeated: float
    delay_s: float


class Plan(msgspec.Struct, frozen=True):
    """Everything that is drawn from a seed before the first event."""

    seed: int
    workers: int
    partitions: int
    clients: int
    submissions: int
    states: int
    """Of how many states the requests choose: the fewer, the more conflicts."""
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
    """The mean of how far one reader is behind in one stream; drawn anew again and again."""
    records_per_poll_max: int
    client_loss: float
    """How likely a call, or its answer, is lost."""
    skews_ms: tuple[int, ...]
    """How far each worker's wall clock is off."""
    clock_jumps: bool
    clocks_stand: int
    """How often the brokers' clock stands still for a while."""
    crashes: int
    machine_crashes: int
    """Crashes that take what the disk had not flushed."""
    crash_at_steps: float
    """How likely a worker dies at any one call of its log or its disk."""
    stops: int
    """Orderly ends (SIGTERM)."""
    stalls: int
    """Readers that fail without a word."""
    cut_offs: int
    """Workers cut off from the log."""
    leaderless: int
    cuts: int
    """How often the log shows less than it has, as a broker of the past would."""
    snapshots: int
    wiped: int
    full_disks: int
    altered_rows: int
    namesake: bool
    forgers: int
    faults_s: float
    crowd: bool
    """All clients come at once, in a few bursts, and do not pause."""
    late_registers: int
    """Register records of a process that is gone, which come only now."""
    hostile: int
    """Calls of those who should be refused."""
    quota_per_s: int
    """How many requests a second a party may send to one worker; 0 for any number."""
    readings: int
    """How often somebody reads a checkpoint with its tiles, a receipt or a state."""
    diverged: int
    """Rows of consumed states changed; never with a log that is lost."""
    damages: int
    """How often the brokers lose the end of a topic-partition, or of several, and grow again."""
    pauses: int
    """Processes that stand still, as after SIGSTOP."""
    rotations: int
    """How often the owner puts another key in force, or offers a former one again."""
    grown: int
    """How often the owner adds payload partitions."""
    retired: int
    """How often the owner ends an incarnation."""
    payload_s: float
    """How much longer a payload takes than an entry; more than hole_timeout."""
    wrong_clocks: int
    """Workers that start with a clock that is wrong by years."""
    jump_of_years: bool
    """All clocks, or the brokers' alone, jump by more than a year, once; then a person says that the workers' clocks are right."""
    aimed: str = ""
    """The kind of loss that waits for its moment (`aimed`); empty for none."""
    aimed_losses: int = 0
    votes_repeated: bool = False
    """Where a worker's consumed states are changed: whether somebody writes its vote again when it was outvoted."""
    misnamed: int = 0
    """Workers that start with a configuration of another notary."""

    @property
    def loses(self) -> bool:
        """Whether the log may lose what it has acknowledged."""
        return bool(self.damages or self.aimed)


def plan(seed: int) -> Plan:
    """Swarm testing: each seed has only some kinds of faults, so that rare combinations are not drowned by common ones."""
    draw = random.Random(f"plan {seed}")

    def some(chance: float, most: int) -> int:
        return draw.randint(1, most) if draw.random() < chance else 0

    def rate(chance: float, most: float) -> float:
        return most * draw.random() ** 2 if draw.random() < chance else 0.0

    # What came later is drawn apart, so that the rest of a plan stays what it was.
    load = random.Random(f"load {seed}")
    kind = load.random()
    long, crowd = kind < 0.05, 0.05 <= kind < 0.12
    workers = draw.choice([1, 2, 2, 3, 3, 3, 4])
    calm = draw.random() < 0.05
    fates = AppendFates(
        lost=rate(0.5, 0.2),
        applied_and_failed=rate(0.5, 0.2),
        late=rate(0.5, 0.2),
        repeated=rate(0.5, 0.3),
        delay_s=draw.choice([0.001, 0.01, 0.05, 0.3]),
    )
    # Drawn apart: what came before it means the same as it did.
    apart = random.Random(f"rare {seed}")
    lost = not calm and apart.random() < 0.1
    diverged = not calm and not lost and workers >= 3 and apart.random() < 0.2
    # What came with the log that certifies itself (R10).
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
        namesake=not calm and draw.random() < 0.15,
        forgers=max(some(0.2, 12), log.randint(0, 8) if damages or diverged else 0),
        faults_s=FAULTS_S,
        crowd=crowd,
        late_registers=0 if calm or load.random() >= 0.1 else load.randint(1, 3),
        hostile=load.randint(2, 12) if load.random() < 0.3 else 0,
        quota_per_s=load.choice([QUOTA_MIN, QUOTA_MAX]) if load.random() < 0.08 else 0,
        readings=load.randint(1, 8) if load.random() < 0.5 else 0,
    )
    slow_s = usual.payload_s * usual.hole_timeout_ms / 1000
    usual = msgspec.structs.replace(usual, payload_s=slow_s if slow_s < usual.append_timeout_s / 2 else 0.0)
    # What came after all that, again apart.
    named, aims = random.Random(f"named {seed}"), random.Random(f"aims {seed}")
    if not calm and named.random() < 0.1:
        usual = msgspec.structs.replace(usual, misnamed=named.randint(1, 2))
    if not calm and not diverged and aims.random() < 0.12:
        usual = msgspec.structs.replace(usual, aimed=aims.choice(AIMED[:-1]), aimed_losses=aims.randint(1, 3))
    elif not calm and not diverged and random.Random(f"unread {seed}").random() < 0.04:
        usual = msgspec.structs.replace(usual, aimed=AIMED[-1], aimed_losses=1, queue_ids_max=2)
    usual = msgspec.structs.replace(usual, votes_repeated=diverged and aims.random() < 0.5)
    if usual.loses or diverged:
        # What is excused there is what was told of decisions (`excused`); nobody reads checkpoints and tiles.
        usual = msgspec.structs.replace(usual, readings=0)
    if usual.requests_max > QUOTA_MIN:
        usual = msgspec.structs.replace(usual, quota_per_s=0)
    if long:
        return msgspec.structs.replace(
            usual,
            faults_s=load.uniform(*FAULTS_S_LONG),
            worker_timeout_ms=load.choice([usual.worker_timeout_ms, 30_000]),
            # Where every append may fail no life grows old, nor where every call may be the last.
            fates=usual.fates if load.random() < 0.3 else AppendFates(0, 0, 0, 0, fates.delay_s),
            crash_at_steps=usual.crash_at_steps * 0.1,
            late_registers=0 if calm or load.random() < 0.3 else load.randint(1, 4),
        )
    if crowd:
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
            fates=msgspec.structs.replace(usual.fates, delay_s=load.choice([0.01, 0.1, 0.3])),  # what comes meanwhile goes together
            pending_requests_max=load.choice([12, 40, 40_000, 40_000]),
        )
    return usual
