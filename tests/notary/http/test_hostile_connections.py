"""Clients that break HTTP or are too slow get an error or a closed connection, and nothing reaches the log."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from notary.http.parsing import HEAD_BYTES_MAX, HEADERS_MAX
from payload import SUBMISSION_BYTES_MAX
from tests.notary.http.checked_client import MARKER, WITH_ACCEPTORS, CheckedClient, Wire, post_head
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory, NotaryProcess

pytestmark = [WITH_ACCEPTORS, pytest.mark.usefixtures("nothing_logged")]

GET = b"GET /v1/notary HTTP/1.1\r\nHost: notary\r\n\r\n"
CONNECTIONS_MAX = 12
IMPATIENT = {"HTTP_HEAD_MS_MAX": 400, "HTTP_BODY_MS_MAX": 400, "HTTP_CONNECTIONS_MAX": CONNECTIONS_MAX, "HTTP_KEEP_ALIVE_MS": 1000}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, bank: Bank, acceptors: int) -> Iterator[NotaryProcess]:
    """A worker of a separate notary with short deadlines and few connections, all in one process."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("impatient") / "notary")
    directory.register(bank)
    with NotaryProcess.start(directory.config, settings=IMPATIENT | {"HTTP_ACCEPTOR_PROCESSES": min(acceptors, 1)}) as process:
        yield process
        process.check_quiet(MARKER)
        assert process.stop() == 0


# ---- size ----


@pytest.mark.parametrize("lines", [(), ("Expect: 100-continue",)], ids=["", "expects"])
def test_a_declared_length_over_the_limit_is_rejected_before_the_body_comes(wire: Wire, lines: tuple[str, ...]) -> None:
    """A declared length over the limit gets 413 after the head, and no 100. Behind the rest of the body another call is answered."""
    returned = wire.send(post_head(SUBMISSION_BYTES_MAX + 1, *lines)).problem()
    assert (returned["status"], returned["type"]) == (413, "/problems/too-large")
    assert str(SUBMISSION_BYTES_MAX) in returned["detail"]
    wire.send(b"x" * (SUBMISSION_BYTES_MAX + 1) + GET)
    assert wire.answer()[0] == 200


def test_a_chunked_body_over_the_limit_is_rejected(wire: Wire) -> None:
    """The bytes of a body without a declared length are counted as they arrive."""
    wire.send(post_head(None, "Transfer-Encoding: chunked"))
    chunk = b"x" * (64 << 10)
    for _ in range(SUBMISSION_BYTES_MAX // len(chunk) + 2):
        wire.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    wire.send(b"0\r\n\r\n")
    assert wire.problem()["status"] == 413


def test_a_body_of_just_the_limit_is_read(wire: Wire) -> None:
    """A body of exactly 2 MiB is read; here it is rejected since it is no JSON."""
    returned = wire.send(post_head(SUBMISSION_BYTES_MAX) + b"x" * SUBMISSION_BYTES_MAX).problem()
    assert (returned["status"], returned["type"]) == (400, "/problems/malformed")


def test_a_chunked_body_is_a_body(wire: Wire) -> None:
    """The chunks of a body are joined before it is decoded."""
    wire.send(post_head(None, "Transfer-Encoding: chunked") + b'2\r\n{"\r\n1\r\nx\r\n4\r\n":1}\r\n0\r\n\r\n')
    assert "unknown member 'x'" in wire.problem()["detail"]


@pytest.mark.parametrize("pieces", [1, 7], ids=["at-once", "in-pieces"])
def test_a_head_over_the_limit_is_rejected(wire: Wire, pieces: int) -> None:
    """A head larger than the limit, in one piece or in many, gets a 400, and the connection ends."""
    head = b"GET /v1/notary HTTP/1.1\r\nHost: notary\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n"
    size = len(head) // pieces + 1
    for at in range(0, len(head), size):
        wire.send(head[at : at + size])
    returned = wire.problem()
    assert (returned["status"], returned["type"]) == (400, "/problems/malformed")
    assert str(HEAD_BYTES_MAX) in returned["detail"]
    assert wire.is_closed()


@pytest.mark.parametrize("count", [HEADERS_MAX - 1, HEADERS_MAX])
@pytest.mark.parametrize("where", ["head", "trailers"])
def test_too_many_headers_are_rejected(wire: Wire, where: str, count: int) -> None:
    """Headers are counted, as each costs the worker more than its bytes; so are trailers. `Host` is one of them."""
    lines = b"A: b\r\n" * (count + (where == "trailers"))
    if where == "head":
        wire.send(b"GET /v1/notary HTTP/1.1\r\nHost: notary\r\n" + lines + b"\r\n")
    else:
        wire.send(post_head(None, "Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\n" + lines + b"\r\n")
    if count < HEADERS_MAX and where == "head":
        assert wire.answer()[0] == 200
        return
    returned = wire.problem()
    assert returned["type"] == "/problems/malformed"
    assert (str(HEADERS_MAX) in returned["detail"]) is (count == HEADERS_MAX)


@pytest.mark.parametrize("length", [1000, 20_000, HEAD_BYTES_MAX + 1, 1 << 20])
def test_a_long_address_is_not_found_or_malformed(wire: Wire, length: int) -> None:
    """A URL of any length gets a 4xx with an excerpt of it."""
    returned = wire.send(b"GET /" + MARKER.encode() + b"x" * length + b" HTTP/1.1\r\nHost: notary\r\n\r\n").problem()
    assert returned["status"] == (404 if length < HEAD_BYTES_MAX else 400)
    assert len(returned["detail"]) < 300


# ---- garbage instead of HTTP ----

GARBAGE: dict[str, bytes] = {
    "words": b"hello, is this " + MARKER.encode() + b"?\r\n\r\n",
    "tls-hello": bytes.fromhex("16030100c8010000c403030000000000000000000000000000000000"),
    "http2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "zeros": bytes(100),
    "high-bytes": b"\xff" * 100,
    "unknown-method": b"FETCH / HTTP/1.1\r\nHost: a\r\n\r\n",
    "lower-case-method": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no-version": b"GET /\r\n\r\n",
    "http-9": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "header-without-colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "space-before-colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "folded-header": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "nul-in-header": b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n",
    "bare-line-feed-in-header": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "high-bytes-in-address": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "space-in-address": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "host-as-address": b"GET http://notary HTTP/1.1\r\nHost: a\r\n\r\n",
    "two-hosts": b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",  # a proxy in front may take the other one (RFC 9112, 3.2)
    "connect": b"CONNECT notary:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "length-negative": b"POST /v1/submissions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "length-words": b"POST /v1/submissions HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    "length-huge": b"POST /v1/submissions HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
    "length-twice": post_head(2, "Content-Length: 3") + b"{}x",
    "length-list": b"POST /v1/submissions HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n{}",
    "length-and-chunks": post_head(2, "Transfer-Encoding: chunked") + b"0\r\n\r\n" + GET,
    "unknown-transfer-coding": post_head(None, "Transfer-Encoding: gzip") + b"{}",
    "chunks-and-identity": post_head(None, "Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
    "chunk-size-garbage": post_head(None, "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n0\r\n\r\n",
    "chunk-size-negative": post_head(None, "Transfer-Encoding: chunked") + b"-1\r\n{}\r\n0\r\n\r\n",
    "chunk-size-huge": post_head(None, "Transfer-Encoding: chunked") + b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n",
    "chunk-longer-than-said": post_head(None, "Transfer-Encoding: chunked") + b"2\r\n{}{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
def test_what_is_not_http_is_malformed_and_ends_the_connection(wire: Wire, sent: bytes) -> None:
    """Garbage, and every ambiguous body length, gets one 4xx problem and a closed connection."""
    returned = wire.send(sent).problem()
    assert (returned["status"], returned["type"]) in {(400, "/problems/malformed"), (404, "/problems/not-found")}
    assert returned["status"] == 400 or MARKER not in json.dumps(returned)
    assert wire.is_closed()


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_offer_to_upgrade_is_passed_over(wire: Wire, protocol: str) -> None:
    """A client that offers another protocol (Java's offers h2c with each call) gets its answers in HTTP/1.1; its body is not lost."""
    offer, body = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABk"), b'{"x":1}'
    wire.send(GET.replace(b"\r\n\r\n", "\r\n".join(["", *offer, "", ""]).encode()))
    assert wire.answer()[0] == 200
    wire.send(post_head(len(body), *offer) + body)
    assert "unknown member 'x'" in wire.problem()["detail"]


# ---- order ----


def test_pipelined_calls_are_answered_in_their_order(wire: Wire) -> None:
    """Also when some of them are rejected."""
    wire.send(GET + GET.replace(b"/v1/notary", b"/nothing") + post_head(2) + b"{}" + GET)
    assert [wire.answer()[0] for _ in range(4)] == [200, 404, 400, 200]


def test_a_client_that_closes_in_the_middle_of_a_body_is_forgotten(worker: NotaryProcess, client: CheckedClient, bank: Bank) -> None:
    """Half a submission is dropped, even with a valid signature."""
    body = bank.body(spend())
    for half in (0, 1, len(body) // 2, len(body) - 1):
        with Wire(worker.url) as wire:
            wire.send(post_head(len(body)) + body[:half])
            wire.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert 400 <= wire.answer()[0] < 500
    assert client.get("/v1/notary").status_code == 200


@pytest.mark.parametrize("blank", ["", " \t"], ids=["", "blank"])
def test_expect_100_continue_is_answered(wire: Wire, blank: str) -> None:
    """A client that insists on 100 would send no body. A blank behind the value means nothing (RFC 9110, 5.5)."""
    wire.send(post_head(2, f"Expect: 100-continue{blank}"))
    assert wire.answer()[0] == 100
    assert wire.send(b"{}").problem()["status"] == 400


# ---- deadlines: an idle or slow client does not hold a connection ----


TOO_SLOW: dict[str, tuple[bytes, list[int], bytes]] = {
    "body-that-stops": (post_head(100) + b'{"party"', [400], b""),
    "body-that-drips": (post_head(1_000_000), [400], b" "),
    "rest-of-a-rejected-body-that-drips": (post_head(SUBMISSION_BYTES_MAX + 1), [413], b" "),
    "no-head": (b"", [], b""),
    "head-that-drips": (b"GET /v1/notary HTTP/1.1\r\nX: ", [400], b" "),
    "blank-lines": (GET, [200], b"\r\n"),
    "second-head-that-stops": (GET + GET[:20], [200, 400], b""),
    "idle": (GET, [200], b""),
    "idle-after-a-rejected-body": (post_head(SUBMISSION_BYTES_MAX + 1) + b"x" * (SUBMISSION_BYTES_MAX + 1), [413], b""),
}
"""The bytes that are sent, the statuses that they get, and the bytes that are sent again and again meanwhile."""


@pytest.mark.parametrize(("sent", "statuses", "drop"), TOO_SLOW.values(), ids=TOO_SLOW)
def test_a_client_that_is_too_slow_is_closed(impatient: NotaryProcess, sent: bytes, statuses: list[int], drop: bytes) -> None:
    """A head and a body have one deadline for all their bytes. An incomplete one gets a 400 then.

    A client that is idle gets no answer: it could cross its next call, and would be taken for the answer to it.
    """
    with Wire(impatient.url) as wire:
        wire.send(sent)
        with _dripping(wire, drop) if drop else contextlib.nullcontext():
            for status in statuses:
                answered, _, body = wire.answer()
                assert answered == status
                assert status == 200 or json.loads(body)["type"] == ("/problems/malformed" if status == 400 else "/problems/too-large")
            assert wire.is_closed()


def test_a_complete_call_stops_the_clock_of_its_head(impatient: NotaryProcess, bank: Bank) -> None:
    """A client that is silent between two calls for longer than a head may take is not closed."""
    with Wire(impatient.url) as watching, Wire(impatient.url) as silent:
        watching.send(GET)
        assert watching.answer()[0] == 200
        # The end of the other connection shows that the deadline for a head has passed.
        assert silent.is_closed()
        watching.send(GET)
        assert watching.answer()[0] == 200


POST = post_head(2) + b"{}"
CUTS = {"complete": 1_000, "in-two": len(POST) - 1, "in-pieces": 20, "pipelined": len(GET + POST) + 7}


@pytest.mark.parametrize("size", CUTS.values(), ids=CUTS)
def test_a_busy_connection_outlives_every_limit(impatient: NotaryProcess, size: int) -> None:
    """Call after call on one connection, cut into any pieces, is answered for longer than every deadline."""
    calls = (GET + POST) * 4
    with Wire(impatient.url) as busy:
        busy.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.monotonic() + 1.25 * IMPATIENT["HTTP_KEEP_ALIVE_MS"] / 1000
        while time.monotonic() < until:
            for at in range(0, len(calls), size):
                busy.send(calls[at : at + size])
                time.sleep(0.001)  # so that the pieces arrive apart
            assert [busy.answer()[0] for _ in range(8)] == [200, 400] * 4


def test_one_connection_too_many_is_overloaded(impatient: NotaryProcess) -> None:
    """A connection over the limit gets 503 with Retry-After; when others have left, a new one is accepted."""
    with contextlib.ExitStack() as open_ones:
        for _ in range(CONNECTIONS_MAX):
            wire = open_ones.enter_context(Wire(impatient.url))
            wire.send(GET)
            assert wire.answer()[0] == 200
        with Wire(impatient.url) as one_more:
            status, headers, body = one_more.answer()
            assert (status, json.loads(body)["type"]) == (503, "/problems/overloaded")
            assert int(headers["retry-after"]) >= 1
            assert one_more.is_closed()
    deadline = time.monotonic() + 30
    status = 503
    while status == 503 and time.monotonic() < deadline:
        with Wire(impatient.url) as wire:
            status = wire.send(GET).answer()[0]
    assert status == 200


@pytest.mark.parametrize("processes", [0, 1])
def test_a_party_with_all_connections_keeps_nobody_out(own_directory: NotaryDirectory, bank: Bank, processes: int) -> None:
    """Two parties have all connections, each with an admitted submission. Clients of other addresses still get an eighth.

    It comes from the party with the most by its weight in the parties file.
    """
    other = Bank("O=Bank B")
    own_directory.register(other, "--weight", "3")
    settings = {"HTTP_CONNECTIONS_MAX": CONNECTIONS_MAX, "HTTP_ACCEPTOR_PROCESSES": processes}
    with NotaryProcess.start(own_directory.config, settings=settings) as process, contextlib.ExitStack() as stack:

        def connect(source: str) -> Wire:
            return stack.enter_context(Wire(process.url, source))

        of_parties = [(bank if number < 4 else other, connect(f"127.0.0.{2 + number % 2}")) for number in range(CONNECTIONS_MAX)]
        for party, wire in of_parties:
            body = party.body(spend())
            assert wire.send(post_head(len(body)) + body).answer()[0] == 200
        for source in ("127.0.0.4", "127.0.0.5"):
            assert connect(source).send(GET).answer()[0] == 200
        assert connect("127.0.0.6").answer()[0] == 503
        served = []
        for party, wire in of_parties:
            with contextlib.suppress(ConnectionResetError):
                assert wire.send(GET).answer()[0] == 200
                served.append(party)
        assert served == [bank] * 2 + [other] * 8
        assert process.stop() == 0


@contextlib.contextmanager
def _dripping(wire: Wire, drop: bytes) -> Iterator[None]:
    """Send these bytes again and again, in the background."""
    enough = threading.Event()

    def drip() -> None:
        while not enough.wait(0.02):
            wire.send(drop)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
