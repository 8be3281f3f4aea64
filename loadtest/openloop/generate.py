"""The submissions of one process, from a seed: the same seed gives the same bytes (with an Ed25519 key). Pure.

Each request spends fresh states, unless the mix requires others. Whether a state is reused is decided when it is generated. So the `Marks`
of a request show from the start which outcomes other than a commit are possible. Processes have different states and share none, so each
can check the outcomes of its own requests.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

import msgspec

from loadtest.openloop.plan import Distribution, Mix
from loadtest.rig.signing import SubmissionSigner, Window, reference

INPUTS_MAX: Final = 9_990
SOON: Final = 8
"""In submissions: a request that reuses a state within this distance meets the first one in flight; a later one finds it decided."""
LATE_MAX: Final = 2_000

PAST_MS: Final = 1_577_836_800_000  # 2020
FUTURE_MS: Final = 4_102_444_800_000  # 2100: fixed ends, or the same seed would not give the same bytes
WINDOWS_OPEN: Final[tuple[Window, ...]] = ((PAST_MS, FUTURE_MS), (PAST_MS, None), (None, FUTURE_MS))
WINDOWS_SHUT: Final[tuple[Window, ...]] = ((None, PAST_MS), (FUTURE_MS, None))


class Marks(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """The reasons why a request may be rejected."""

    inputs: tuple[str, ...] = ()
    """Its inputs that other requests name too."""
    references: tuple[str, ...] = ()
    window: Window | None = None


class PlannedSubmission(msgspec.Struct, frozen=True, array_like=True):
    """One submission to send."""

    body: bytes
    ids: bytes
    """The transaction ids of its requests, in order, 32 bytes each."""
    marks: dict[int, Marks]
    """By the index of the request; a request without marks must commit."""
    twice: bool = False
    """True if it is sent two times, like a retry."""


class _Later:
    """Objects that become due at a later submission."""

    def __init__(self, random: Random, late_max: int) -> None:
        self._random = random
        self._late_max = late_max
        self._heap: list[tuple[int, int, object]] = []
        self._count = 0

    def plan(self, now: int, thing: object) -> None:
        """Schedule an object: half of them soon, half late."""
        span = (0, SOON) if self._random.random() < 0.5 else (SOON, self._late_max)
        self._count += 1
        heapq.heappush(self._heap, (now + 1 + self._random.randint(*span), self._count, thing))

    def due(self, now: int) -> object | None:
        """Returns the first object that is due, or None."""
        return heapq.heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None


def generate(mix: Mix, seed: str, count: int, writer: SubmissionSigner) -> Iterator[PlannedSubmission]:
    """Yields `count` submissions."""
    random = Random(seed)
    maker = _Requests(mix, random, max(SOON, min(LATE_MAX, count // 4)))
    again = _Later(random, max(SOON, min(LATE_MAX, count // 4)))
    # `retries` is the share of second copies among all submissions, so the share of first ones with a copy is higher.
    chance = mix.retries / (1 - mix.retries)
    for at in range(count):
        repeated = again.due(at)
        if isinstance(repeated, PlannedSubmission):
            yield repeated
            continue
        texts, ids, marks = [], [], {}
        for number in range(mix.submission_requests):
            text, id_, mark = maker.make(at, writer)
            texts.append(text)
            ids.append(id_)
            if mark is not None:
                marks[number] = mark
        made = writer.submission(texts, ids)
        planned = PlannedSubmission(made.body, made.ids, marks, random.random() < chance)
        if planned.twice:
            again.plan(at, planned)
        yield planned


class _Requests:
    def __init__(self, mix: Mix, random: Random, late_max: int) -> None:
        self._mix = mix
        self._random = random
        self._spend_again = _Later(random, late_max)
        self._refer_to = _Later(random, late_max)
        self._inputs = drawing(mix.inputs_distribution, mix.inputs, random)

    def make(self, at: int, writer: SubmissionSigner) -> tuple[str, bytes, Marks | None]:
        """Returns (JSON, transaction id, marks)."""
        random, chance, mix = self._random, self._random.random, self._mix
        inputs = [_state(random) for _ in range(self._inputs())]
        marked: list[bytes] = []
        references: list[bytes] = []
        window: Window | None = None
        if chance() < mix.double_spends:
            self._spend_again.plan(at, inputs[-1])
            marked.append(inputs[-1])
        if chance() < mix.references:
            if chance() < 0.5:
                references.append(_state(random))
            else:
                self._refer_to.plan(at, inputs[-1])
                marked = inputs[-1:]
        if chance() < mix.windows:
            window = random.choice(WINDOWS_SHUT if chance() < 0.25 else WINDOWS_OPEN)
        if isinstance(spent := self._spend_again.due(at), bytes):
            # Replace a fresh input, so that the mean stays; add it if the only input is one that others are to name.
            inputs[: len(inputs) > len(marked)] = [spent]
            marked.append(spent)
        if isinstance(named := self._refer_to.due(at), bytes):
            references.append(named)
        text, id_ = writer.request(sorted(inputs), random.randbytes(32), sorted(references), window)
        if not (marked or references or window):
            return text, id_, None
        return text, id_, Marks(tuple(map(reference, sorted(marked))), tuple(map(reference, sorted(references))), window)


def _state(random: Random) -> bytes:
    return random.randbytes(32) + random.choice((0, 1, 2, 10)).to_bytes(4, "big")


def drawing(distribution: Distribution, mean: float, random: Random) -> Callable[[], int]:
    """Returns a function that draws a number of inputs, at least 1, with that mean.

    Fixed: the mean itself, or its two neighbours if it is fractional.
    """
    if distribution == "fixed":
        below, rest = int(mean), mean % 1
        return lambda: below + (random.random() < rest) if rest else below
    more = mean - 1  # the number of inputs beyond the first is drawn
    if distribution == "uniform":
        return lambda: 1 + min(INPUTS_MAX, round(random.random() * 2 * more))
    if distribution == "geometric":
        ratio = more / mean
        return lambda: 1 + (min(INPUTS_MAX, int(math.log(1 - random.random()) / math.log(ratio))) if ratio else 0)
    return lambda: 1 + min(INPUTS_MAX, _poisson(random, more))


def _poisson(random: Random, mean: float) -> int:
    """Draw by Knuth's method; by the normal approximation where that would be slow and underflow."""
    if mean > 50:
        return max(0, round(random.gauss(mean, math.sqrt(mean))))
    limit, product, drawn = math.exp(-mean), random.random(), 0
    while product > limit:
        product *= random.random()
        drawn += 1
    return drawn
