"""The options that this load adds to Locust's own, and the plan that follows from them. Pure, except for the output of `argparse`.

`--host` of Locust takes several URLs here, `--users` is the number of connections and `--run-time` the length of the whole schedule. Every
default has its option's type: Locust's web form keeps the type that it finds.
"""

from argparse import ArgumentParser, Namespace
from typing import Any
from urllib.parse import urlsplit

from loadtest.bench.generate import PARTY
from loadtest.openloop.plan import DISTRIBUTIONS, SHAPES, STEPS, Mix, Plan, stages_of

USERS = 200
"""The default number of connections: as many submissions may be unanswered at a time before others are sent late."""
DEADLINE_S = 30.0
RECEIPT_SAMPLE = 0.01


class Unusable(Exception):
    """Options that cannot make a load; the message says which and why."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options, in three groups.

    Locust shows them in its web form, but not in `--help`, which it answers before it reads its file.
    """
    parser.set_defaults(num_users=USERS, spawn_rate=100)
    group = parser.add_argument_group("notary: the schedule (open loop; rates count requests, whatever the requests of a submission)")
    _add(group, "--shape", choices=SHAPES, default="steady", help="how the rate goes (default: steady)")
    _add(group, "--rate", type=float, default=1_000.0, metavar="N", help="requests a second, but for steps (default: 1000)")
    _add(group, "--steps", default=",".join(map(str, STEPS)), metavar="N,N,...", help="requests a second, one after the other")
    _add(group, "--spike-rate", type=float, default=0.0, metavar="N", help="in the middle fifth of a spike (default: 5 times --rate)")
    _add(group, "--warm-up", type=float, default=0.0, metavar="S", help="seconds before the schedule that are checked but not timed")
    _add(
        group,
        "--attempt",
        type=float,
        default=0.0,
        metavar="S",
        help="after so long the next worker is asked (default: half of what is left)",
    )
    _add(group, "--deadline", type=float, default=DEADLINE_S, metavar="S", help="a submission fails so long after its intended start")
    asked = parser.add_argument_group("notary: what is asked, made and signed before the start")
    mix = Mix()
    _add(asked, "--requests-per-submission", type=int, default=mix.submission_requests, metavar="N", help="1 to 1000 (default: 1)")
    _add(asked, "--inputs", type=float, default=mix.inputs, metavar="MEAN", help="inputs of a request (default: 4)")
    _add(asked, "--inputs-distribution", choices=DISTRIBUTIONS, default=mix.inputs_distribution, help="around that mean, 1 at least")
    for name, what in (
        ("double-spends", "requests that spend an input of an earlier one again"),
        ("references", "requests with a reference, half of them to an input of an earlier one"),
        ("windows", "requests with a time window, a quarter of them shut for ever"),
        ("retries", "submissions that are sent twice, to the byte"),
    ):
        default = getattr(mix, name.replace("-", "_"))
        _add(asked, f"--{name}", type=float, default=default, metavar="SHARE", help=f"{what} (default: {default})")
    _add(asked, "--seed", default="", metavar="TEXT", help="of all that is made; another each time, and told, unless given")
    _add(asked, "--notary-name", default="", metavar="NAME", help="default: what the notary says it is")
    _add(asked, "--party", default=PARTY, metavar="NAME", help="who asks; must be registered at the notary")
    _add(asked, "--key", default="", metavar="FILE", help="the party's PEM private key (default: the one of the benchmarks)")
    checks = parser.add_argument_group("notary: what is checked")
    _add(checks, "--verifier-key", default="", metavar="KEY", help="what receipts are verified with (default: what the notary says)")
    _add(checks, "--receipt-sample", type=float, default=RECEIPT_SAMPLE, metavar="SHARE", help="of the receipts, to verify (0.01)")
    _add(checks, "--no-receipts", action="store_true", default=False, help="ask for answers without receipts")
    _add(checks, "--not-alone", action="store_true", default=False, help="others ask too: positions told to nobody are theirs")
    _add(checks, "--figure", default="", metavar="FILE", help="where the figure goes, as JSON, if there is one")


def _add(group: Any, *names: str, **options: Any) -> None:
    # Locust's form shows options with this attribute; its own parser sets it, an argument group does not.
    group.add_argument(*names, **options).include_in_web_ui = True


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


def plan_of(options: Namespace, urls: tuple[str, ...], *, run: str, seed: str, notary_name: str, verifier_key: str) -> Plan:
    """Returns the plan that the options describe; names that are not given come from the notary. Raises `Unusable`."""
    mix = Mix(
        submission_requests=options.requests_per_submission,
        inputs=options.inputs,
        inputs_distribution=options.inputs_distribution,
        double_spends=options.double_spends,
        references=options.references,
        windows=options.windows,
        retries=options.retries,
    )
    if problem := mix.problem():
        raise Unusable(problem)
    if not 0 <= options.receipt_sample <= 1:
        raise Unusable("--receipt-sample is a share, 0 to 1")
    if options.deadline <= 0:
        raise Unusable("--deadline is more than nothing")
    if options.attempt < 0:
        raise Unusable("--attempt is a number of seconds, or 0 for half of what is left")
    try:
        steps = [float(step) for step in options.steps.split(",")]
        stages = stages_of(options.shape, options.rate, options.run_time or None, steps, options.spike_rate or None, options.warm_up)
    except ValueError as problem:
        raise Unusable(f"the schedule: {problem}") from None
    return Plan(
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
