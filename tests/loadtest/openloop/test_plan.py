"""Tests that options become a plan, or a line with the reason why not."""

from argparse import ArgumentParser, Namespace

import pytest

from loadtest.openloop.plan import LoadPlan, Unusable, add_arguments, plan_of, urls_of, urls_of_session


def _parsed(*arguments: str) -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("--run-time", type=float)
    add_arguments(parser)
    return parser.parse_args(arguments)


def _plan(*arguments: str) -> LoadPlan:
    return plan_of(_parsed(*arguments), ("http://a:1",), run="r", seed="s", notary_name="N", verifier_key="K")


def test_every_option_arrives() -> None:
    """The plan has the value of every option."""
    text = """--shape steps --steps 10,20 --run-time 8 --warm-up 1 --deadline 3 --requests-per-submission 7
        --inputs 5 --inputs-distribution poisson --double-spends .1 --references .2 --windows .3 --retries .4
        --notary-name M --party P --key F --verifier-key V --receipt-sample 1"""
    plan = _plan(*text.split())
    assert [(stage.requests_per_s, stage.seconds) for stage in plan.stages] == [(10, 1), (10, 4), (20, 4)]
    mix = plan.mix
    assert (mix.submission_requests, mix.inputs, mix.inputs_distribution) == (7, 5, "poisson")
    assert (mix.double_spends, mix.references, mix.windows, mix.retries) == (0.1, 0.2, 0.3, 0.4)
    assert (plan.notary_name, plan.party, plan.key_file, plan.verifier_key) == ("M", "P", "F", "V")
    assert (plan.receipt_sample, plan.deadline_s) == (1, 3)


def test_defaults_keep_their_types() -> None:
    """No option that the web form shows has the default None: Locust's form would turn it into text."""
    own = vars(_parsed())
    assert [name for name, value in own.items() if value is None] == ["run_time"]


@pytest.mark.parametrize(
    "wrong",
    [
        "--rate 0",
        "--shape steps --steps 1,two",
        "--inputs 0",
        "--requests-per-submission 1001",
        "--retries 0.9",
        "--receipt-sample 2",
        "--deadline 0",
        "--deadline inf",
        "--attempt nan",
        "--rate nan",
        "--warm-up inf",
    ],
)
def test_what_makes_no_load(wrong: str) -> None:
    """Values out of range are rejected before anything is created."""
    with pytest.raises(Unusable):
        _plan(*wrong.split())


@pytest.mark.parametrize("host", [None, "", "localhost:80", "ftp://a", "http://a/path"])
def test_hosts_that_are_none(host: str | None) -> None:
    """Without a usable URL the options are rejected."""
    with pytest.raises(Unusable):
        urls_of(host)


def test_defaults_listen_on_loopback() -> None:
    """The web form and Locust's master are on loopback; an address on the command line wins."""
    for given, address in (([], "127.0.0.1"), (["--web-host", "*", "--master-bind-host", "*"], "*")):
        parser = ArgumentParser()
        parser.add_argument("--web-host", default="")
        parser.add_argument("--master-bind-host", default="*")
        add_arguments(parser)
        options = parser.parse_args(given)
        assert (options.web_host, options.master_bind_host) == (address, address)


def test_the_form_has_no_files() -> None:
    """The web form has all options but those that name a file."""
    parser = ArgumentParser()
    own = len(parser._actions)
    add_arguments(parser)
    assert [each.dest for each in parser._actions[own:] if not vars(each)["include_in_web_ui"]] == ["key", "figure"]


@pytest.mark.parametrize(
    ("host", "given", "urls"),
    [
        ("http://a:1", "http://a:1, http://b:2", ("http://a:1",)),
        ("http://b:2/, http://a:1", "http://a:1,http://b:2", ("http://b:2", "http://a:1")),
        ("http://localhost:1", None, ("http://localhost:1",)),
    ],
)
def test_a_form_chooses_among_hosts(host: str, given: str | None, urls: tuple[str, ...]) -> None:
    """The form may name URLs of the command line, separated by commas, or, if that had none, of this machine."""
    assert urls_of_session(host, given) == urls


@pytest.mark.parametrize(
    ("host", "given"), [("http://a:2", "http://a:1"), ("http://127.0.0.1:1", "http://a:1"), ("http://a:1", ""), ("http://a:1", None)]
)
def test_a_form_names_no_other_host(host: str, given: str | None) -> None:
    """Any other URL is refused: whoever reaches the form must not load anybody's server."""
    with pytest.raises(Unusable, match="--host on the command line"):
        urls_of_session(host, given)
