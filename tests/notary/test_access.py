"""Secret files as pods get them: access rights, and the remedy when this process may not read. Child processes play other users."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from notary import keys, parties
from notary.client import Signer, tls_context
from notary.config import kafka_security, load
from notary.index.rocks import IndexSettings, open_store
from notary.open_log import open_log
from notary.tls import Certificates, TlsFiles
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, NotaryError
from ordering.settings import LogSettings
from tests.notary.certificates import Authority
from tests.rights import needs_root

NOBODY = 65534
POD_GROUP = 23456


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may read, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def as_user(user: int, groups: list[int], call: Callable[[], object]) -> str:
    """Returns the error of a call by another user, or "done"."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        outcome = "another error"
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            call()
            outcome = "done"
        except NotaryError as problem:
            outcome = f"{type(problem).__name__}: {problem}"
        finally:
            os.write(writable, outcome.encode())
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as reader:
        outcome = reader.read()
    os.waitpid(child, 0)
    return outcome


@pytest.mark.seconds
@needs_root
def test_a_mounted_secret_is_taken(folder: Path) -> None:
    """A file of root with mode 440 and the pod's group is accepted as a key by a process in that group."""
    file = folder / "k.pem"
    keys.create(file)
    os.chown(file, 0, POD_GROUP)
    file.chmod(0o440)
    assert as_user(NOBODY, [POD_GROUP], lambda: keys.load(file)) == "done"
    outcome = as_user(NOBODY, [], lambda: keys.load(file))
    assert outcome.startswith(f"ConfigurationError: cannot read the notary's key {file}: Permission denied")


@pytest.mark.seconds
@needs_root
@pytest.mark.parametrize(
    ("mode", "owner"), [(0o444, 0), (0o640, 0), (0o460, 0), (0o450, 0), (0o440, NOBODY)], ids=["others", "640", "write", "execute", "owner"]
)
def test_what_more_can_read_is_refused(folder: Path, mode: int, owner: int) -> None:
    """Any other group-readable file is rejected: with another mode, or with an owner other than root."""
    file = folder / "k.pem"
    keys.create(file)
    os.chown(file, owner, POD_GROUP)
    file.chmod(mode)
    outcome = as_user(NOBODY, [POD_GROUP], lambda: keys.load(file))
    assert f"is open to others (mode {mode:o}, user {owner}, group {POD_GROUP})" in outcome
    assert "chmod 600" in outcome
    assert "defaultMode: 0440" in outcome


@needs_root
def test_a_group_that_is_not_ours_is_refused(folder: Path) -> None:
    """Root, who can read everything, rejects a file that another group can read."""
    file = folder / "k.pem"
    keys.create(file)
    os.chown(file, 0, POD_GROUP)
    file.chmod(0o440)
    with pytest.raises(ConfigurationError, match="open to others"):
        keys.load(file)


def _kafka(folder: Path, security_protocol: Literal["SSL", "SASL_SSL"] = "SSL", **settings: Any) -> object:
    return kafka_security(LogSettings(security_protocol=security_protocol, **settings), folder)


SECRETS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "notary's key": ("k.pem", lambda folder: keys.load(folder / "k.pem")),
    "owner's key": ("k.pem", lambda folder: keys.load(folder / "k.pem", keys.OWNERS)),
    "party's key": ("k.pem", lambda folder: Signer.from_file(folder / "k.pem")),
    "brokers' password": ("password", lambda folder: _kafka(folder, "SASL_SSL", sasl_username="u", sasl_password_file="password")),
    "key for the brokers": ("pair-key.pem", lambda folder: _kafka(folder, cert_file="pair.pem", key_file="pair-key.pem")),
    "key in the certificate's file": ("both.pem", lambda folder: _kafka(folder, cert_file="both.pem")),
    "service's TLS key": ("pair-key.pem", lambda folder: Certificates(TlsFiles(f"{folder}/pair.pem", f"{folder}/pair-key.pem", "", True))),
    "client's TLS key": ("pair-key.pem", lambda folder: tls_context(None, folder / "pair.pem", folder / "pair-key.pem")),
    "client's one file": ("both.pem", lambda folder: tls_context(None, folder / "both.pem")),
}
"""Every file with a secret that the product reads, and the function that reads it."""


@pytest.mark.parametrize("kind", SECRETS)
def test_every_secret_is_looked_at(folder: Path, kind: str) -> None:
    """A secret that everyone can read or write is rejected with file, mode and remedy. Mode 600, and 440 of root and our group, pass."""
    name, use = SECRETS[kind]
    keys.create(folder / "k.pem")
    pair = Authority().server()
    pair.put(folder, "pair")
    (folder / "both.pem").write_bytes(pair.certificate + pair.key)
    (folder / "password").write_text("secret")
    for mode in (0o604, 0o602, 0o640, 0o610, 0o666):
        (folder / name).chmod(mode)
        with pytest.raises(ConfigurationError, match=rf"{folder / name} is open to others \(mode {mode:o}, .*chmod 600") as refused:
            use(folder)
        assert "BEGIN" not in str(refused.value)
    (folder / name).chmod(0o600)
    use(folder)
    os.chown(folder / name, os.geteuid(), os.getegid())
    (folder / name).chmod(0o440)
    if os.geteuid() == 0:
        use(folder)
    (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=f"{folder / name}: No such file"):
        use(folder)


@pytest.mark.seconds
@needs_root
@pytest.mark.parametrize("what", ["key", "parties", "configuration", "history"])
def test_a_file_that_is_roots_alone(folder: Path, what: str) -> None:
    """With mode 400 in a pod that is not root, the error names the user, the file's owner and the pod's setting, not `notary init`."""
    file = folder / "file"
    key = keys.create(folder / "k.pem").public_key()
    file.write_text("")
    file.chmod(0o400)
    calls: dict[str, Callable[[], object]] = {
        "key": lambda: keys.load(file),
        "parties": lambda: parties.read(file),
        "configuration": lambda: load(file, {}, {}),
        "history": lambda: keys.load_history(file, "notary.example/x", key),
    }
    outcome = as_user(NOBODY, [POD_GROUP], calls[what])
    assert f"{file}: Permission denied. It has mode 400, user 0, group 0" in outcome
    assert f"this process is user {NOBODY}, groups {POD_GROUP}, {NOBODY}" in outcome
    assert "`fsGroup`" in outcome
    assert "notary init" not in outcome


@pytest.mark.seconds
@needs_root
def test_a_folder_on_the_way_that_is_closed(folder: Path) -> None:
    """If a folder on the path is closed, the error does not name the file's own mode, which cannot be read."""
    (folder / "in").mkdir(0o700)
    keys.create(folder / "in" / "k.pem")
    outcome = as_user(NOBODY, [], lambda: keys.load(folder / "in" / "k.pem"))
    assert "A folder on the way to it is closed to this process" in outcome


# ---- folders that cannot be written ----

OPENING = """
import sys
from pathlib import Path
from notary.index.rocks import IndexSettings, open_store
from ordering.errors import NotaryError
try:
    open_store(Path(sys.argv[1]), IndexSettings(cache_bytes=8 << 20, write_buffer_bytes=1 << 20))
except NotaryError as problem:
    print(type(problem).__name__, problem)
"""
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.seconds
@needs_root
def test_an_index_in_a_folder_that_is_not_ours(folder: Path) -> None:
    """An index folder that this user may not write raises an error that names the setting, and not a damaged index."""
    outcome = as_user(NOBODY, [], lambda: open_store(folder / "index" / "w", IndexSettings()))
    assert outcome.startswith(f"ConfigurationError: the index {folder / 'index' / 'w'} cannot be made: Permission denied")
    assert "NOTARY_INDEX_DIRECTORY" in outcome


@pytest.mark.seconds
@needs_root
def test_an_embedded_log_in_a_folder_that_is_not_ours(folder: Path) -> None:
    """The same error for a log names neither damage nor another process."""
    EmbeddedLog.create(folder / "log", 4)
    (folder / "notary.toml").write_text('name = "O=N"\norigin = "notary.example/x"\n')
    config = load(folder / "notary.toml", {}, {})
    outcome = as_user(NOBODY, [], lambda: asyncio.run(open_log(config)))
    assert outcome.startswith(
        f"ConfigurationError: the log {folder / 'log'} cannot be written: Permission denied. Run as its owner, or name"
    )
    assert "NOTARY_LOG_DIRECTORY" in outcome


@pytest.mark.seconds
@needs_root
@pytest.mark.parametrize("exists", [False, True], ids=["new", "there"])
def test_an_index_on_a_file_system_that_is_read_only(folder: Path, exists: bool) -> None:
    """A read-only file system, such as a mounted ConfigMap, is reported neither as damage nor as in use by another process."""
    index = folder / "index" / "w"
    if exists:
        open_store(index, IndexSettings(cache_bytes=8 << 20, write_buffer_bytes=1 << 20)).close()
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(folder), sys.executable, "-c", OPENING, str(index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine lets nobody mount: {done.stderr}")
    assert done.stdout.startswith(f"ConfigurationError the index {index} cannot be {'written' if exists else 'made'}: "), done.stderr
    assert "Read-only file system" in done.stdout
    assert "NOTARY_INDEX_DIRECTORY" in done.stdout
    assert "damaged" not in done.stdout
