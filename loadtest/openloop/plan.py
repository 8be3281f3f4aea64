"""The parameters of a run: the mix of requests, the plan of one process, and the options that this load adds to Locust's own. Pure.

The plan travels in one message, so that no process reads the command line. `--host` of Locust takes several URLs here, `--users` is the
number of connections and `--run-time` the length of the complete schedule. Every default has its option's type: Locust's web form keeps the
type that it finds.
"""

from argparse import ArgumentParser, Namespace
from math import inf
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from loadtest.rig.schedule import SHAPES, STEPS, Stage, arrivals_count, stages_of
from loadtest.rig.signing import PARTY

Distribution: TypeAlias = Literal["fixed", "poisson", "uniform", "geometric"]
DISTRIBUTIONS: Final[tuple[str, ...]] = get_args(Distribution)

SHARES: Final = {
    "double_spends": "requests that spend an input of an earlier one again",
    "references": "requests with a reference, half of them to an input of an earlier one",
    "windows": "requests with a time window, a quarter of them shut for ever",
    "retries": "submissions that are sent twice, to the byte",
}
"""The shares of a mix, and the help of their options."""
SUBMISSION_REQUESTS_MAX: Final = 1_000
INPUTS_MEAN_MAX: Final = 4_000
"""With this mean hardly any draw of any distribution exceeds the contract's 10,000; such a draw is capped."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """The mix of requests. Shares are fractions of 1: of the requests, except `retries`, which is a share of the submissions."""

    submission_requests: int = 1
    inputs: float = 4.0
    """The mean number of inputs of a request."""
    inputs_distribution: Distribution = "fixed"
    double_spends: float = 0.01
    """Requests that name an input of an earlier request."""
    references: float = 0.01
    """Requests with a reference: every other one to a state that is an input of an earlier request."""
    windows: float = 0.01
    """Requests with a time window: every fourth one is shut for ever."""
    retries: float = 0.01
    """Submissions that are sent a second time, byte for byte."""

    def problem(self) -> str | None:
        """Returns the first invalid option of this mix, or None."""
        if not 1 <= self.submission_requests <= SUBMISSION_REQUESTS_MAX:
            return f"--requests-per-submission is 1 to {SUBMISSION_REQUESTS_MAX:,}"
        if not 1 <= self.inputs <= INPUTS_MEAN_MAX:
            return f"--inputs is 1 to {INPUTS_MEAN_MAX:,}"
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 0.5:
                return f"--{name.replace('_', '-')} is a share, 0 to 0.5"
        return None


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a run."""

    run: str
    """Identifies the run, so that late messages of an earlier one are recognised."""
    seed: str
    stages: tuple[Stage, ...]
    mix: Mix
    urls: tuple[str, ...]
    notary_name: str
    party: str
    key_file: str | None
    """A PEM private key; None: that of the benchmarks."""
    verifier_key: str | None
    """None: receipts are not requested."""
    receipt_sample: float
    """The share of receipts to verify; all must be present."""
    deadline_s: float
    """A submission without a complete answer this long after its intended start has failed."""
    attempt_s: float = 0.0
    """The time to wait for one worker; 0: half of the time until the deadline."""
    process: int = 0
    processes: int = 1

    @property
    def submissions(self) -> int:
        """The number of submissions that this process has to send."""
        return arrivals_count(self.stages, self.mix.submission_requests, self.process, self.processes)

    @property
    def seconds(self) -> float:
        """The time from the first intended start to the end of the last stage."""
        return sum([stage.seconds for stage in self.stages])


# ---- the options ----

USERS = 200
"""The default number of connections: as many submissions may be unanswered at a time before others are sent late."""
DEADLINE_S = 30.0
RECEIPT_SAMPLE = 0.01
LOOPBACK = "127.0.0.1"
FILES: Final = ("figure", "key", "html_file", "json_file")
"""The options that name files, Locust's included: only the command line sets them."""


class Unusable(Exception):
    """Options that cannot make a load; the message says which and why."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options, in three groups.

    Locust shows them in its web form, files left out, but not in `--help`, which it answers before it reads its file. Its form and its
    master listen on loopback unless an option says otherwise.
    """
    parser.set_defaults(num_users=USERS, spawn_rate=100, web_host=LOOPBACK, master_bind_host=LOOPBACK)
    group = parser.add_argument_group("notary: the schedule (open loop; rates count requests, whatever the requests of a submission)")
    _add(group, "--shape", choices=SHAPES, default="steady", help="the course of the rate (default: steady)")
    _add(group, "--rate", type=float, default=1_000.0, metavar="N", help="requests a second, but for steps (default: 1000)")
    _add(group, "--steps", default=",".join(map(str, STEPS)), metavar="N,N,...", help="requests a second, one after the other")
    _add(group, "--spike-rate", type=float, default=0.0, metavar="N", help="in the middle fifth of a spike (default: 5 times --rate)")
    _add(group, "--warm-up", type=float, default=0.0, metavar="S", help="seconds before the schedule that are checked but not timed")
    attempt = "seconds until the next worker is tried (default: half of the time left)"
    _add(group, "--attempt", type=float, default=0.0, metavar="S", help=attempt)
    _add(group, "--deadline", type=float, default=DEADLINE_S, metavar="S", help="a submission fails this long after its intended start")
    requests = parser.add_argument_group("notary: the requests, generated and signed before the start")
    mix = Mix()
    _add(requests, "--requests-per-submission", type=int, default=mix.submission_requests, metavar="N", help="1 to 1000 (default: 1)")
    _add(requests, "--inputs", type=float, default=mix.inputs, metavar="MEAN", help="inputs of a request (default: 4)")
    _add(requests, "--inputs-distribution", choices=DISTRIBUTIONS, default=mix.inputs_distribution, help="around that mean, 1 at least")
    for name, described in SHARES.items():
        default, flag = getattr(mix, name), f"--{name.replace('_', '-')}"
        _add(requests, flag, type=float, default=default, metavar="SHARE", help=f"{described} (default: {default})")
    _add(requests, "--seed", default="", metavar="TEXT", help="of everything that is generated (default: a new one, which the log shows)")
    _add(requests, "--notary-name", default="", metavar="NAME", help="default: the name that the notary reports")
    _add(requests, "--party", default=PARTY, metavar="NAME", help="the client, which must be registered at the notary")
    _add(requests, "--key", default="", metavar="FILE", help="the party's PEM private key (default: the one of the benchmarks)")
    checks = parser.add_argument_group("notary: the checks")
    _add(checks, "--verifier-key", default="", metavar="KEY", help="verifies receipts (default: the key that the notary reports)")
    _add(checks, "--receipt-sample", type=float, default=RECEIPT_SAMPLE, metavar="SHARE", help="of the receipts, to verify (0.01)")
    _add(checks, "--no-receipts", action="store_true", default=False, help="ask for answers without receipts")
    not_alone = "other clients send requests too: positions that no process saw are theirs"
    _add(checks, "--not-alone", action="store_true", default=False, help=not_alone)
    _add(checks, "--figure", default="", metavar="FILE", help="the file for the figure, as JSON, if there is one")


def _add(group: Any, *names: str, **options: Any) -> None:
    # Locust's form shows options with this attribute; its own parser sets it, an argument group does not.
    action = group.add_argument(*names, **options)
    action.include_in_web_ui = action.dest not in FILES


def urls_of(host: str | None) -> tuple[str, ...]:
    """Returns the URLs of `--host`. Raises `Unusable`."""
    urls = tuple([url.strip().rstrip("/") for url in (host or "").split(",") if url.strip()])
    if not urls:
        raise Unusable("no --host is given; give the URLs of the workers, such as http://127.0.0.1:8080,http://127.0.0.1:8081")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path:
            raise Unusable(f"--host: {url} is not a worker's URL, such as http://127.0.0.1:8080")
    return urls


def urls_of_session(host: str | None, given: str | None) -> tuple[str, ...]:
    """Returns the URLs of a host that the web form may have changed; `given` is the one of the command line. Raises `Unusable`.

    The form may choose among the URLs of the command line, and without any among those of this machine.
    """
    urls = urls_of(host)
    allowed = set(urls_of(given)) if given else {url for url in urls if urlsplit(url).hostname in (LOOPBACK, "localhost", "::1")}
    if others := [url for url in urls if url not in allowed]:
        raise Unusable(f"the form may not load {', '.join(others)}: give --host on the command line")
    return urls


def plan_of(options: Namespace, urls: tuple[str, ...], *, run: str, seed: str, notary_name: str, verifier_key: str) -> LoadPlan:
    """Returns the plan that the options describe; names that are not given come from the notary. Raises `Unusable`."""
    mix = Mix(
        submission_requests=options.requests_per_submission,
        inputs=options.inputs,
        inputs_distribution=options.inputs_distribution,
        **{name: getattr(options, name) for name in SHARES},
    )
    if problem := mix.problem():
        raise Unusable(problem)
    if not 0 <= options.receipt_sample <= 1:
        raise Unusable("--receipt-sample is a share, 0 to 1")
    if not 0 < options.deadline < inf:
        raise Unusable("--deadline is a number of seconds above 0")
    if not 0 <= options.attempt < inf:
        raise Unusable("--attempt is a number of seconds, or 0 for half of the time left")
    try:
        steps = [float(step) for step in options.steps.split(",")]
        stages = stages_of(options.shape, options.rate, options.run_time or None, steps, options.spike_rate or None, options.warm_up)
    except ValueError as problem:
        raise Unusable(f"the schedule: {problem}") from None
    return LoadPlan(
        run=run,
        seed=seed,
        stages=stages,
        mix=mix,
        urls=urls,
        notary_name=options.notary_name or notary_name,
        party=options.party,
        key_file=options.key or None,
        verifier_key=None if options.no_receipts else options.verifier_key or verifier_key,
        receipt_sample=options.receipt_sample,
        deadline_s=options.deadline,
        attempt_s=options.attempt,
    )
