"""A notary as its users run it: `notary init`, `notary party add`, `notary serve`, each a process of its own."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from loadtest.bench.generate import NOTARY, PARTY, party_key_pem
from loadtest.bench.report import progress

READY_S_MAX = 60.0
STOP_S_MAX = 40.0
_ROOT = Path(__file__).parents[2]


class Service(msgspec.Struct, frozen=True):
    """One running worker."""

    url: str
    pid: int


def make(directory: Path, bootstrap: str | None, topic_prefix: str, *options: str) -> Path:
    """Create a notary with the party registered, and no worker yet; returns its configuration. `options` are for `notary init`."""
    log = ["--kafka", bootstrap, "--topic-prefix", topic_prefix] if bootstrap else []
    notary("init", str(directory), "--name", NOTARY, "--origin", "bench.example/notary", *log, *options)
    key = directory / "party.pem"
    key.write_bytes(party_key_pem())
    config = directory / "notary.toml"
    notary("party", "add", PARTY, "--public-key", str(key), "--config", str(config))
    return config


def verifier_key(config: Path) -> str:
    """Returns the notary's verifier key, from the operator and not from a worker."""
    return str(msgspec.json.decode(notary("key", "show", "--config", str(config), "--json"))["verifier_key"])


@contextlib.contextmanager
def worker(config: Path, name: str, added: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Yields a running worker of that name for the length of a block; `added` is added to its environment."""
    log_file = config.parent / f"{name}.log"
    with log_file.open("wb") as errors:
        process = subprocess.Popen(
            [*_COMMAND, "serve", "--config", str(config), "--name", name, "--listen", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment() | dict(added or {}),
            start_new_session=True,  # a Ctrl-C is for the parent process, which then stops this one in order
        )
    try:
        yield Service(_url_of(process, log_file), process.pid)
    finally:
        _stop(process, log_file)


def notary(*arguments: str) -> str:
    """Run one short command; returns its output. Raises `RuntimeError` with its error output when it fails."""
    done = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment())
    if done.returncode:
        raise RuntimeError(f"notary {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


_COMMAND = [sys.executable, "-P", "-m", "notary"]


def environment() -> dict[str, str]:
    """Returns the environment of a process under test, or of a load."""
    # Without the settings in the caller's shell.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NOTARY_") or name == "NOTARY_KAFKA_HOME"}
    return kept | {"PYTHONPATH": python_path()}


def python_path(*first: Path) -> str:
    """Returns PYTHONPATH for a process of this checkout."""
    return os.pathsep.join(filter(None, [*map(str, first), str(_ROOT), os.environ.get("PYTHONPATH")]))


def _url_of(worker: "subprocess.Popen[bytes]", log_file: Path) -> str:
    assert worker.stdout is not None
    readable, _, _ = select.select([worker.stdout], [], [], READY_S_MAX)
    line = worker.stdout.readline() if readable else b""
    if not line:
        why = f"ended with {worker.wait(5)}" if readable else f"was not ready after {READY_S_MAX:g} s"
        raise RuntimeError(f"notary serve {why}: {_tail(log_file)}")
    return str(msgspec.json.decode(line)["url"])


def _stop(worker: "subprocess.Popen[bytes]", log_file: Path) -> None:
    started = time.monotonic()
    worker.terminate()
    try:
        code = worker.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        worker.kill()
        code = worker.wait(10)
    if worker.stdout is not None:
        worker.stdout.close()
    if code:
        progress(f"notary serve ended with {code} after {time.monotonic() - started:.1f} s: {_tail(log_file)}")


def _tail(log_file: Path) -> str:
    return " / ".join(log_file.read_text(errors="replace").splitlines()[-8:])
