"""The measurements of `make bench`, their order, and an estimate of each one's duration.

Not every combination is measured. One parameter at a time is varied from a base case (3 brokers, 1 worker, 100 requests a submission, 4
inputs a request). Then follow the corners where another part of the work is the limit.

| varied | cases |
|---|---|
| requests of a submission | 1, 10, 100 |
| inputs of a request | 1, 4; 1,000 with one request a submission (a hundred of them would exceed the limit of a submission) |
| workers | 1, 2 |
| the log | 3 brokers, 1 broker, embedded |
| connections | 64, 256, at one request a submission: more concurrent submissions make larger batches |
| acceptor processes (`intake`) | 0, 1 |
| corners | one request a submission on each log and with two workers (signatures and HTTP); 100 with 1 input on each log (the log) |
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from deploy.local import CannotRun
from loadtest.bench import apply, curve, decode, end_to_end, overload, raw, rebuild, receipts
from loadtest.bench.end_to_end import Case
from loadtest.bench.report import Bar, Report, progress
from loadtest.bench.stages import measure as stages
from loadtest.rig import Place, brokers_of, log_name, workers_on
from ordering.errors import NotaryError

FIGURES = ("decode", "apply", "receipts", "stages", "raw", "rebuild", "end-to-end", "curve", "overload")
START_S = {0: 2.0, 1: 6.0, 3: 10.0}
"""The approximate seconds until brokers and workers serve."""
CASES: dict[tuple[int, int, int], tuple[Case, ...]] = {
    (3, 1, 0): (
        Case(100, 4, beside_without_receipts=True),
        Case(10, 4),
        Case(1, 4),
        Case(1, 4, connections=256),
        Case(100, 1),
        Case(1, 1_000),
    ),
    (3, 1, 1): (Case(100, 4), Case(1, 4), Case(1, 4, connections=256)),
    (3, 2, 0): (Case(100, 4), Case(1, 4)),
    (1, 1, 0): (Case(100, 4), Case(1, 4), Case(100, 1)),
    (1, 1, 1): (Case(100, 4), Case(1, 4), Case(1, 4, connections=256)),
    (0, 1, 0): (Case(100, 4), Case(1, 4), Case(100, 1)),
}
"""By the number of brokers, of workers, and of acceptor processes of each."""
CURVES = {1: (Case(100, 4), Case(1, 4)), 3: (Case(100, 4),)}
CURVES_QUICK = {1: (Case(100, 4),)}
"""By the number of brokers."""
CURVE_S_MIN, STAGES_S_MIN = 3.0, 6.0
"""The sampler takes one sample every few milliseconds of CPU time: fewer than some hundreds are too few."""


class Step(msgspec.Struct, frozen=True):
    """One measurement of a part; `run` gets the object that the part opened."""

    text: str
    seconds: float
    run: Callable[[Any], None]


class Part(msgspec.Struct, frozen=True):
    """Measurements on one system under test."""

    text: str
    seconds: float
    """The approximate time that `open` takes."""
    open: Callable[[], AbstractContextManager[Any]]
    steps: Sequence[Step]


def parts_of(
    report: Report, figures: Sequence[str], seconds: float, seed: int, *, quick: bool = False, brokers_only: int | None = None
) -> list[Part]:
    """Returns the program for these figures; `seconds` is the length of an `end-to-end` load, and the others are in proportion."""
    parts: list[Part] = []
    alone = {"decode": (decode.measure, 5.0), "apply": (apply.measure, 8.0), "receipts": (receipts.measure, 8.0)}
    for name, (measure, lasts) in alone.items():
        if name in figures:
            parts.append(Part(name, 0.0, contextlib.nullcontext, [_alone(report, name, measure, seconds / 4, lasts, seed)]))
    if "stages" in figures:
        parts.append(_stages(report, 1 if brokers_only is None else brokers_only, seconds, seed))
    brokers = 3 if brokers_only is None else brokers_only
    on_brokers = {"raw": (raw.measure, 0.5, 4.0), "rebuild": (rebuild.measure, 1.0, 4.0)}
    for name, (of_brokers, share, times) in on_brokers.items():
        if name in figures and brokers:
            parts.append(_on_brokers(report, name, of_brokers, brokers, seconds * share, times, seed))
    for (on, workers, intake), cases in CASES.items():
        if "end-to-end" in figures and brokers_only in (None, on):
            parts.append(_end_to_end(report, on, workers, intake, cases, seconds, seed))
    if "curve" in figures:
        curves = CURVES_QUICK if quick else CURVES
        shares = curve.SHARES_QUICK if quick else curve.SHARES
        for on, cases in curves.items() if brokers_only is None else [(brokers_only, curves.get(brokers_only, CURVES_QUICK[1]))]:
            parts.append(_curve(report, on, cases, seconds, seed, shares))
    if "overload" in figures:
        parts.append(_overload(report, 1 if brokers_only is None else brokers_only, seconds, seed))
    return parts


def run(parts: Sequence[Part], bar: Bar) -> list[str]:
    """Run one part after another; returns the reasons for parts that could not be measured, which do not stop the others."""
    seconds = sum([part.seconds + sum([step.seconds for step in part.steps]) for part in parts])
    steps = sum([len(part.steps) for part in parts])
    done_s, number, problems = 0.0, 0, []
    for part in parts:
        last = number + len(part.steps)
        ends_s = done_s + part.seconds + sum([step.seconds for step in part.steps])
        try:
            with contextlib.ExitStack() as stack:
                with bar.during(done_s / seconds, part.seconds / seconds, part.seconds, f"{number}/{steps} {part.text}: starting"):
                    opened = stack.enter_context(part.open())
                done_s += part.seconds
                for step in part.steps:
                    number += 1
                    with bar.during(done_s / seconds, step.seconds / seconds, step.seconds, f"{number}/{steps} {step.text}"):
                        step.run(opened)
                    done_s += step.seconds
        except (CannotRun, NotaryError, RuntimeError, OSError) as problem:
            problems.append(f"{part.text} cannot be measured: {problem}")
            progress(problems[-1])
            done_s, number = ends_s, last
    return problems


@contextlib.contextmanager
def _place(brokers: int, workers: int = 1, intake: int = 0) -> Iterator[Place]:
    with brokers_of(brokers) as cluster, workers_on(cluster, workers, intake=intake) as place:
        yield place


@contextlib.contextmanager
def _watched(brokers: int) -> Iterator[stages.Watched]:
    with brokers_of(brokers) as cluster, stages.watched(cluster) as watched:
        yield watched


def _load_s(seconds: float) -> float:
    """Returns the approximate time of a load of this length, including the generation of its bodies."""
    return seconds * 1.5 + 1.5


def _alone(report: Report, name: str, measure: Callable[[Report, float, int], None], seconds: float, times: float, seed: int) -> Step:
    return Step(name, seconds * times, lambda opened: measure(report, seconds, seed))


def _on_brokers(
    report: Report,
    name: str,
    measure: Callable[[Report, str, int, float, int], None],
    brokers: int,
    seconds: float,
    times: float,
    seed: int,
) -> Part:
    step = Step(name, seconds * times, lambda cluster: measure(report, cluster.bootstrap, brokers, seconds, seed))
    return Part(f"{name}, {log_name(brokers)}", START_S[brokers], lambda: brokers_of(brokers), [step])


def _stages(report: Report, brokers: int, seconds: float, seed: int) -> Part:
    seconds = max(seconds, STAGES_S_MIN)

    def warm_up(watched: stages.Watched) -> None:
        end_to_end.warm_up(watched.place, min(end_to_end.WARM_UP_S, seconds), seed)

    def step(case: Case, number: int) -> Step:
        text = f"stages: {case.requests} a submission, {case.inputs} inputs"
        return Step(text, _load_s(seconds), lambda watched: stages.measure(report, watched, case, seconds, seed + 1_000 * number))

    steps = [Step("stages: warming up", 2 * _load_s(min(end_to_end.WARM_UP_S, seconds) / 2), warm_up)]
    steps += [step(case, number) for number, case in enumerate(stages.CASES, 1)]
    return Part(f"stages, {log_name(brokers)}", START_S[brokers], lambda: _watched(brokers), steps)


def _end_to_end(report: Report, brokers: int, workers: int, intake: int, cases: Sequence[Case], seconds: float, seed: int) -> Part:
    name = f"{log_name(brokers)}{'' if workers == 1 else f', {workers} workers'}{f', intake processes: {intake}' if intake else ''}"
    warm_up_s = min(end_to_end.WARM_UP_S, seconds)

    def step(case: Case, number: int) -> Step:
        took_s = _load_s(seconds) + 2 * _load_s(seconds / 2) * case.beside_without_receipts
        asked = f", {case.connections} connections" if case.connections else ""
        text = f"end to end: {case.requests} a submission, {case.inputs} inputs, {name}{asked}"
        return Step(text, took_s, lambda place: end_to_end.measure(report, place, case, seconds, seed + 1_000 * number))

    steps = [Step(f"warming up, {name}", 2 * _load_s(warm_up_s / 2), lambda place: end_to_end.warm_up(place, warm_up_s, seed))]
    steps += [step(case, number) for number, case in enumerate(cases, 1)]
    if workers == 1 and not intake:
        # Last: by now everything is warm, especially the brokers.
        text = f"end to end: idle, {name}"
        steps.append(Step(text, _load_s(seconds / 2) + 5, lambda place: end_to_end.measure_idle(report, place, seconds, seed + 500)))
    return Part(f"end to end, {name}", START_S[brokers] + workers, lambda: _place(brokers, workers, intake), steps)


def _curve(report: Report, brokers: int, cases: Sequence[Case], seconds: float, seed: int, shares: tuple[float, ...]) -> Part:
    def step(case: Case, number: int) -> Step:
        text = f"curve: {case.requests} a submission, {log_name(brokers)}"
        took_s = _load_s(max(seconds / 2, CURVE_S_MIN)) * (len(shares) + 1) + 2 * len(shares)
        return Step(
            text, took_s, lambda place: curve.measure(report, place, case, max(seconds / 2, CURVE_S_MIN), seed + 1_000 * number, shares)
        )

    steps = [step(case, number) for number, case in enumerate(cases, 1)]
    return Part(f"curve, {log_name(brokers)}", START_S[brokers], lambda: _place(brokers), steps)


def _overload(report: Report, brokers: int, seconds: float, seed: int) -> Part:
    text = f"overload: {overload.TIMES:g} times the capacity"
    step = Step(text, 3 * _load_s(seconds) + 3, lambda place: overload.measure(report, place, seconds, seed))
    return Part(f"overload, {log_name(brokers)}", START_S[brokers], lambda: _place(brokers), [step])
