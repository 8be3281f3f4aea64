"""The worker, its prepared log, the well-behaved load, and the measurements."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx
import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from loadtest.rig.machine import environment, resident_bytes
from loadtest.rig.notaries import make, run_module
from loadtest.rig.open_loop import Offer, Offered
from loadtest.rig.signing import NOTARY, Made, SubmissionSigner
from tests.hostile.contents import PARTY, party_key
from tests.hostile.process import Attack
from tests.hostile.wire import ADDRESS_MAX, Tally, Target
from tests.notary.certificates import Authority
from tests.notary.process import NotaryDirectory, NotaryProcess

CONFLICTS: Final = 10_000
"""Inputs of one request: the maximum."""
RETRIED: Final = 1_000
CONNECTIONS: Final = 32
"""Connections of the well-behaved load. They are made while the hostile clients attack, and then kept open."""
CHECK_S: Final = 0.1
END_S_MAX: Final = 30.0


class Seen(msgspec.Struct):
    """The measurements of one phase."""

    kinds: list[str]
    share: float
    """The share of requests decided in the steady part of the load, of those that were due in it."""
    decided: int
    """The number of those that were decided, also after that part."""
    p50_ms: float
    p99_ms: float
    errors: int
    """Wrong answers to the well-behaved, and connections of theirs that failed."""
    dropped: int
    """Submissions of theirs whose connection ended without an answer."""
    rejected: int
    undecided: int
    failures: list[str]
    worker_mib_max: float
    connections_max: int
    connections_after: int
    """Connections that the worker still has when its hostile clients are gone."""
    attack: dict[str, Tally]


class Site:
    """A worker on a log of its own, with two parties."""

    def __init__(self, process: NotaryProcess, target: Target) -> None:
        """Use `made`."""
        self.process = process
        self.target = target
        self._seeds = iter(range(1, 1 << 30))

    def phase(self, kinds: Sequence[str], rate: float, seconds: float, *, ended_s_max: float = 0.0, part: float = 1.0) -> Seen:
        """Run the well-behaved load for so many seconds while `part` of the clients of these kinds attack (`Attack`)."""
        pid = self.process.process.pid
        offer = Offer(
            urls=[self.target.url],
            seed=next(self._seeds),
            requests=1,
            inputs=1,
            requests_per_s=rate,
            seconds=seconds,
            decided_per_s_max=rate,
            connections_max=CONNECTIONS,
            pids={"worker": [pid]},
        )
        with Attackers(Attack(self.target, kinds, ended_s_max, part)) as attackers, Watch(pid) as watch:
            load = run_module("loadtest.rig.open_loop", offer, Offered, seconds * 10 + 180)
        return Seen(
            kinds=list(kinds),
            share=load.decided / load.due if load.due else 0.0,
            decided=load.decided_ms.count,
            p50_ms=load.decided_ms.p50,
            p99_ms=load.decided_ms.p99,
            errors=load.errors,
            dropped=load.dropped,
            rejected=load.rejected,
            undecided=load.undecided,
            failures=load.failures,
            worker_mib_max=watch.bytes_max / (1 << 20),
            connections_max=watch.connections_max,
            connections_after=self._left(),
            attack=attackers.tallies,
        )

    def _left(self) -> int:
        """Returns the connections that are left when their clients have gone; waits for the worker to notice."""
        until_s = time.monotonic() + END_S_MAX
        while (left := connections_of(self.target.url)) and time.monotonic() < until_s:
            time.sleep(CHECK_S)
        return left


class Attackers:
    """A process of hostile clients during a `with` block."""

    def __init__(self, attack: Attack) -> None:
        self.tallies: dict[str, Tally] = {}
        self._attack = attack

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "tests.hostile.process", msgspec.json.encode(self._attack).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), start_new_session=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            returned, _ = self._process.communicate(timeout=END_S_MAX + self._attack.ended_s_max)
        finally:
            self._process.kill()
        if error is None:
            assert self._process.returncode == 0, f"the hostile clients ended with {self._process.returncode}"
            self.tallies = msgspec.json.decode(returned, type=dict[str, Tally])


class Watch:
    """Samples a process during a `with` block."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.bytes_max = 0
        self.connections_max = 0

    def _sample(self) -> None:
        while not self._over.wait(CHECK_S):
            self.bytes_max = max(self.bytes_max, resident_bytes([self._pid]))
            self.connections_max = max(self.connections_max, sockets_of(self._pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()


def sockets_of(pid: int) -> int:
    """Returns the number of sockets that a process has open."""
    count = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += os.readlink(file).startswith("socket:")
        except OSError:
            continue
    return count


def connections_of(url: str) -> int:
    """Returns the number of accepted connections that are established with the port of that URL."""
    port = f":{int(url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return len([fields for fields in lines if fields[1].endswith(port) and fields[3] in ("01", "08")])


@contextmanager
def made(
    folder: Path, *, kafka: str = "", tls: bool = False, rejections: int = 32, settings: Mapping[str, object] | None = None
) -> Iterator[Site]:
    """Make a notary with both parties and its worker, which must end cleanly; its log has `rejections` with the maximum of conflicts."""
    config = make(folder / "notary", kafka or None, "hostile")
    NotaryDirectory(folder / "notary").register_pem(
        PARTY, party_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    added: dict[str, object] = {"HTTP_CONNECTIONS_PER_ADDRESS_MAX": ADDRESS_MAX}
    if tls:
        authority = Authority()
        authority.server().put(folder / "notary", "server")
        os.environ["SSL_CERT_FILE"] = str(authority.put(folder / "ca.pem"))  # for all that this process starts
        added |= {"HTTP_TLS_CERT_FILE": "server.pem", "HTTP_TLS_KEY_FILE": "server-key.pem"}
    with NotaryProcess.start(config, settings=added | dict(settings or {})) as process:
        yield Site(process, prepare(process.url, folder, rejections))
        assert process.stop() == 0


def prepare(url: str, folder: Path, rejections: int) -> Target:
    """Have the worker decide the submissions that hostile clients send again, and write their bodies into the folder."""
    drawn = random.Random(1)
    writer = SubmissionSigner(NOTARY, PARTY, party_key().sign)

    def signed(count: int, states: Sequence[bytes] = ()) -> Made:
        requests = [writer.request(states or [drawn.randbytes(32) + bytes(4)], drawn.randbytes(32)) for _ in range(count)]
        return writer.submission([text for text, _ in requests], [id_ for _, id_ in requests])

    with httpx.Client(base_url=url, timeout=60, trust_env=True) as http:

        def decide(submission: Made) -> Made:
            answer = http.post("/v1/submissions?receipts=false", content=submission.body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 200, answer.text
            return submission

        states = sorted([drawn.randbytes(32) + bytes(4) for _ in range(CONFLICTS)])
        decide(signed(1, states))
        conflicts = [decide(signed(1, states)) for _ in range(rejections)]
        retry = decide(signed(RETRIED))
    forged = signed(RETRIED)
    at = forged.body.index(b'"signature":"') + len(b'"signature":"')
    bodies = {
        "retry": retry.body,
        "conflicts": conflicts[-1].body,
        "bad-signature": forged.body[:at] + retry.body[at : at + 88] + forged.body[at + 88 :],
    }
    for name, body in bodies.items():
        (folder / name).write_bytes(body)
    return Target(url, str(folder), f"/tile/entries/000.p/{rejections + 1}", [each.ids.hex() for each in conflicts])
