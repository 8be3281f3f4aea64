"""Random and mutated bodies on one keep-alive connection get an answer of the contract, and the connection stays usable."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import some
from tests.notary.http.checked_client import JSON, CheckedClient, Wire, post_head
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryProcess

SOME = settings(max_examples=some(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PIECES = st.sampled_from([b" ", *b'" { } [ ] , : null 1.5 -1 1e9 "inputs" "x" \\u0000 \\ud800 \xff \x00'.split()])


@st.composite
def mutation(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Returns a function that cuts, inserts or repeats parts of a body, a few times."""
    edits = draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), st.one_of(PIECES, st.binary(max_size=8))), min_size=1, max_size=4))

    def mutate(body: bytes) -> bytes:
        for place, cut, put in edits:
            at = int(place * len(body))
            body = body[:at] + put + body[at + cut :]
        return body

    return mutate


def check(client: CheckedClient, body: bytes) -> None:
    """Check for an answer of the contract, on a connection that stays open."""
    answer = client.ask("POST", "/v1/submissions", content=body, headers=JSON)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    assert "connection" not in answer.headers


@SOME
@given(body=st.binary(max_size=300))
def test_random_bytes_are_rejected(client: CheckedClient, body: bytes) -> None:
    """Random bytes always get a 4xx."""
    check(client, body)


@SOME
@given(mutate=mutation())
def test_a_mutated_submission_is_rejected_or_decided(client: CheckedClient, bank: Bank, mutate: Callable[[bytes], bytes]) -> None:
    """A submission with a few changed bytes gets a 4xx, or is still the one that was signed."""
    check(client, mutate(bank.body(spend(), spend(time_window={"from": 1, "until": None}))))


HEAD_PIECES = st.sampled_from(
    b"GET|POST| |/|/v1/notary|HTTP/1.1|\r\n|\n|\r|:|Content-Length: 3|Upgrade: h2c|Transfer-Encoding: chunked|Connection: Upgrade|"
    b"Connection: close|Expect: 100-continue|Host: a|0|\r\n\r\n|\x00|\xff|%00".split(b"|")
)


@SOME
@given(parts=st.lists(st.one_of(HEAD_PIECES, st.binary(max_size=4)), max_size=25), complete=st.booleans())
def test_random_heads_never_make_a_5xx(worker: NotaryProcess, parts: list[bytes], complete: bool) -> None:
    """Random bytes instead of HTTP get answers below 500, or a closed connection."""
    with Wire(worker.url) as wire:
        wire.send((post_head(3) if complete else b"") + b"".join(parts) + b"\r\n\r\n\r\n\r\n\x00\x00")
        while True:
            try:
                status, headers, _ = wire.answer()
            except ConnectionResetError:
                break
            assert status < 500
            if headers.get("connection") == "close":
                break
    worker.check_quiet()
