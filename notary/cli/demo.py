"""`notary demo`: a complete notary in a temporary folder, with a double spend and a crash.

It uses the real commands and the real client. An operator makes a notary and registers two banks, a worker serves, the banks spend, and one
of them tries a double spend. Then the worker is killed and starts again. The demo checks every claim that it prints, and ends with exit
code 1 at the first that does not hold. If the demo itself fails (a command fails, no worker answers in time), it proves nothing about the
notary: exit code 2.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.cli import json_line
from notary.client import Answer, Client, Contradiction, Signer, TransactionRequest, Unproven, transaction_ids
from notary.exit_codes import EXIT_DONE, EXIT_NO
from notary.verify import NotVerified, SignedCheckpoint, verify_receipt
from ordering.errors import NotaryError

NOTARY = "O=Demo Notary,L=London,C=GB"
BANK_A = "O=Bank A,L=London,C=GB"
BANK_B = "O=Bank B,L=Zurich,C=CH"
DEADLINE_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary demo`."""
    parser.add_argument("--json", action="store_true", help="one JSON line a step")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. Returns 0 if every claim holds, 1 if one does not."""
    stage = _Stage(as_json=arguments.json)
    os.environ["no_proxy"] = "*"  # the client must not use a proxy: all processes are on this machine
    # These end the demo as Ctrl-C does: the worker ends, and its folder is removed. Under nohup SIGHUP stays ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="notary-demo-") as folder:
        try:
            _play(Path(folder), stage)
        except (_NotAsPromised, NotVerified, Unproven, Contradiction) as problem:
            print(f"notary demo: not as promised: {problem}", file=sys.stderr)
            return EXIT_NO
    return EXIT_DONE


def _play(folder: Path, stage: "_Stage") -> None:
    directory = folder / "notary"
    stage.step("The operator makes a notary: its key, the owner's key (kept beside it here), a configuration, an embedded log.")
    made = orjson.loads(_command("init", str(directory), "--name", NOTARY, "--origin", "notary.example/demo", "--json"))
    config = directory / "notary.toml"
    stage.step("Two banks make their keys; the operator registers them.")
    keys = {bank: _make_key(folder, bank) for bank in (BANK_A, BANK_B)}
    for bank, (_, public) in keys.items():
        _command("party", "add", bank, "--public-key", str(public), "--config", str(config))
    signers = {bank: Signer.from_file(private) for bank, (private, _) in keys.items()}
    key = made["verifier_key"]
    with _serving(config, signal.SIGKILL) as url:
        stage.step(f"A worker serves at {url}.")
        with (
            Client([url], BANK_A, signers[BANK_A], verifier_keys=key) as bank_a,
            Client([url], BANK_B, signers[BANK_B], verifier_keys=key) as bank_b,
        ):
            coin = f"{sha256(b'the issue of a coin').hexdigest()}:0"
            rent, car = _spend(coin, "rent"), _spend(coin, "car")

            stage.step("Bank A spends a coin on the rent.")
            [paid] = bank_a.submit([rent], deadline_s=DEADLINE_S)
            stage.answer(paid)
            _expect(paid.outcome == "committed", "a first spend is committed")

            stage.step("Bank B spends the same coin on a car: a double spend.")
            [rejected] = bank_b.submit([car], deadline_s=DEADLINE_S)
            stage.answer(rejected)
            _expect(rejected.reason == "input-conflict", "a double spend is rejected")
            consumer = sha256(bytes.fromhex(paid.transaction_id)).hexdigest()
            _expect(rejected.conflicts[0].consumed_by == consumer, "the conflict names the hash of the transaction that was first")

            stage.step("Bank A did not receive the answer, and sends the same again: it gets the same decision.")
            [again] = bank_a.submit([rent], deadline_s=DEADLINE_S)
            stage.answer(again)
            _expect(again.same_decision(paid), "a retry gets the same decision")

            stage.step("A hundred more, under one signature.")
            many = bank_a.submit([_spend(f"{sha256(b'%d' % n).hexdigest()}:{n}", str(n)) for n in range(100)], deadline_s=DEADLINE_S)
            _expect(all(answer.outcome == "committed" for answer in many), "fresh states are spent")
            _expect([answer.position for answer in many] == list(range(2, 102)), "positions have no gaps")
            stage.step(f"Committed at positions {many[0].position} to {many[-1].position}.")

        stage.step("The worker is killed (SIGKILL), and it starts again.")
    with _serving(config, signal.SIGTERM) as url, Client([url], BANK_B, signers[BANK_B], verifier_keys=key) as bank_b:
        [still] = bank_b.submit([car], deadline_s=DEADLINE_S)
        stage.answer(still)
        _expect(still.same_decision(rejected), "a decision outlives the worker")
        [rent_id] = transaction_ids([rent], NOTARY)
        _expect(bank_b.transaction(rent_id) is not None, "what was committed is there")
    stage.step("The worker is gone. Each receipt is checked offline, with the notary's verifier key and nothing else.")
    answers = [paid, rejected, again, *many, still]
    size = max(_checked(answer, key).size for answer in answers)
    stage.step(f"{len(answers)} receipts verify; the last tree has {size} decisions under {key}")
    try:
        _checked(msgspec.structs.replace(rejected, outcome="committed", reason=None, conflicts=()), key)
    except NotVerified as problem:
        stage.step(f"The double spend, with `committed` written over its outcome, does not verify: {problem.reason}.")
    else:
        raise _NotAsPromised("a decision that was changed does not verify")
    stage.step("Done: no state was spent twice, and no decision has changed.")


def _checked(answer: Answer, verifier_key: str) -> SignedCheckpoint:
    _expect(answer.receipt is not None, "a decision comes with its receipt")
    return verify_receipt(answer.receipt or "", msgspec.to_builtins(answer), [verifier_key])


def _spend(state: str, what: str) -> TransactionRequest:
    return TransactionRequest(inputs=[state], content_hash=sha256(what.encode()).hexdigest())


def _make_key(folder: Path, bank: str) -> tuple[Path, Path]:
    """Make a bank's key, as its own tools would. Returns the (private, public) PEM files."""
    key = Ed25519PrivateKey.generate()
    stem = folder / bank[2:8].replace(" ", "-").lower()
    private, public = stem.with_suffix(".pem"), stem.with_suffix(".pub")
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def _environment() -> dict[str, str]:
    """Returns the environment of the commands, without `NOTARY_*` variables, which may be set for another notary."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NOTARY_")}


def _command(*words: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-m", "notary", *words], capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        raise NotaryError(f"`notary {' '.join(words)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class _NotAsPromised(Exception):
    """A claim of the demo does not hold."""


def _expect(held: bool, claim: str) -> None:
    if not held:
        raise _NotAsPromised(claim)


@contextmanager
def _serving(config: Path, end: signal.Signals) -> Iterator[str]:
    """Run `notary serve` for the length of a block, and end it with this signal. Yields its URL when it is ready."""
    command = [sys.executable, "-P", "-m", "notary", "serve", "--config", str(config), "--name", "demo"]
    command += ["--listen", "127.0.0.1:0", "--json", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment()) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise NotaryError("`notary serve` ended before it was ready")
            yield orjson.loads(line)["url"]
        finally:
            process.send_signal(end)
            process.wait()


class _Stage:
    """Prints the demo, step by step."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._steps = 0

    def step(self, text: str) -> None:
        """Print one step of the demo."""
        self._steps += 1
        print(json_line({"step": text}) if self._as_json else f"{self._steps:2}  {text}", flush=True)

    def answer(self, answer: Answer) -> None:
        """Print an answer of the notary."""
        if self._as_json:
            members = ("transaction_id", "position", "outcome", "reason")
            print(json_line({name: getattr(answer, name) for name in members}), flush=True)
            return
        reason = f": {answer.reason}" if answer.reason else ""
        print(f"      -> {answer.transaction_id[:16]}... {answer.outcome}{reason}, position {answer.position}", flush=True)
        for conflict in answer.conflicts:
            print(f"         {conflict.kind} {conflict.state[:16]}... was consumed by {conflict.consumed_by[:16]}...", flush=True)
