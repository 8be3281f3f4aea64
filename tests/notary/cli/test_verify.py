"""`notary verify`, from its arguments to its exit code."""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from notary.cli import main
from notary.decision import Conflict, Decision, Kind, Outcome
from notary.receipts.key_history import endorse
from notary.wire import HistoricKey
from tests.notary.receipts.grown import ORIGIN, Grown, as_object, private_key, random_decisions, verifier_key

ROOT = Path(__file__).parents[3]
NOTARY = Grown(random_decisions(300))
FORK = Grown([*NOTARY.decisions[:100], *random_decisions(300, seed=2)[100:]])
KEY = str(NOTARY.key)


class Folder:
    """Files to verify, and the command's output."""

    def __init__(self, path: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._captured = captured
        self.out = self.err = ""
        self.put("receipt", NOTARY.receipt(5))
        self.put("decision", as_object(NOTARY.decisions[5]))

    def put(self, name: str, content: Any) -> str:
        """Write a file with text, bytes or JSON. Returns its path."""
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(content)
        return str(self.path / name)

    def put_tiles(self, notary: Grown) -> str:
        """Write the tiles of a notary in the layout of tlog-tiles. Returns the folder's path."""
        for name, content in notary.files().items():
            self.put(f"tiles/{name}", content)
        return str(self.path / "tiles")

    def verify(self, *words: str, key: str = KEY) -> int:
        """Run `notary verify`; words that are file names in this folder stand for the files."""
        given = [str(self.path / word) if (self.path / word).is_file() else word for word in words]
        code = main(["verify", *given, "--verifier-key", key])
        self.out, self.err = self._captured.readouterr()
        return code

    def found(self, *words: str, key: str = KEY) -> dict[str, Any]:
        """Returns the `--json` output."""
        code = self.verify(*words, "--json", key=key)
        found: dict[str, Any] = json.loads(self.out)
        assert code == (0 if found["verified"] else 1)
        return found


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


TREE = {"origin": ORIGIN, "tree_size": 300, "root": NOTARY.view().root.hex()}


# One receipt


def test_a_receipt_that_proves_its_decision(folder: Folder) -> None:
    """A valid receipt exits with 0 and one line."""
    assert folder.verify("receipt", "--decision", "decision") == 0
    assert folder.out == f"verified: decision 5 is in the tree of {ORIGIN} with 300 decisions, root {TREE['root']}\n"
    assert folder.err == ""
    assert folder.found("receipt", "--decision", "decision") == {"verified": True, "position": 5, **TREE}


def test_a_receipt_that_does_not(folder: Folder) -> None:
    """An invalid receipt exits with 1; the reason is on stderr, and stdout is empty without --json."""
    other = folder.put("other", as_object(NOTARY.decisions[6]))
    assert folder.verify("receipt", "--decision", other) == 1
    assert folder.out == ""
    assert folder.err.startswith("notary verify: wrong-position: the receipt is for position 5")
    found = folder.found("receipt", "--decision", other)
    assert found["reason"] == "wrong-position"
    assert found["detail"].startswith("the receipt is for position 5")


@pytest.mark.parametrize(
    ("receipt", "decision", "reason"),
    [
        (b"\xff\x00", None, "malformed-receipt"),
        (NOTARY.receipt(5).replace("\n", "\r\n"), None, "malformed-receipt"),
        (NOTARY.checkpoint(), None, "malformed-receipt"),
        (NOTARY.receipt(5).replace("\n300\n", "\n301\n"), None, "bad-signature"),
        (None, b"\xff", "malformed-decision"),
        (None, "[" * 50_000, "malformed-decision"),
        (None, [], "malformed-decision"),
        (None, {**as_object(NOTARY.decisions[5]), "log_time": 1}, "wrong-root"),
    ],
)
def test_files_that_are_something_else(folder: Folder, receipt: Any, decision: Any, reason: str) -> None:
    """Any content of the files to verify gives a negative result with its reason, exit 1."""
    if receipt is not None:
        folder.put("receipt", receipt)
    if decision is not None:
        folder.put("decision", decision)
    assert folder.found("receipt", "--decision", "decision")["reason"] == reason


def test_one_matching_key_is_enough(folder: Folder) -> None:
    """--verifier-key may be repeated: one matching key is enough."""
    assert folder.verify("receipt", "--decision", "decision", "--verifier-key", str(verifier_key("new"))) == 0
    assert folder.found("receipt", "--decision", "decision", key=str(verifier_key("new")))["reason"] == "unknown-key"
    assert folder.found("receipt", "--decision", "decision", key=str(verifier_key("x", "x.example")))["reason"] == "wrong-origin"


@pytest.mark.seconds
def test_a_dash_reads_standard_input(folder: Folder) -> None:
    """- reads the receipt or the decision from standard input."""
    words = [sys.executable, "-m", "notary", "verify", "--verifier-key", KEY]
    for given, more in (("receipt", ["-", "--decision", "decision"]), ("decision", ["receipt", "--decision", "-"])):
        done = subprocess.run([*words, *more], cwd=folder.path, env={"PYTHONPATH": str(ROOT)}, input=(folder.path / given).read_bytes())
        assert done.returncode == 0


@pytest.mark.seconds
def test_it_needs_no_kafka_no_rocksdb_and_no_asyncio(folder: Folder) -> None:
    """The command runs where the notary's server libraries are not installed."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['asyncio', 'aiokafka', 'rocksdict', 'httptools', 'httpx', 'prometheus_client']));"
        "from notary.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "verify", "receipt", "--decision", "decision", "--verifier-key", KEY]
    done = subprocess.run(words, cwd=folder.path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Failures, exit 2


@pytest.mark.parametrize(
    "words",
    [
        ["missing", "--decision", "decision"],
        ["receipt", "--decision", "missing"],
        ["receipt"],
        ["receipt", "--decision", "decision", "--key-history", "missing"],
        ["receipt", "--decision", "decision", "--consistent-with", "missing"],
        ["receipt", "--decision", "decision", "--tiles", "."],
        ["receipt", "--decision", "decision", "--verifier-key", KEY[:-1]],
        ["receipt", "--decision", "decision", "--verifier-key", ""],
        ["-", "--decision", "-"],
        ["/", "--decision", "decision"],
    ],
)
def test_what_it_cannot_do(folder: Folder, words: list[str]) -> None:
    """A missing file, a mistyped key, and a receipt without its decision give exit 2 with the reason, and no result."""
    assert folder.verify(*words, "--json") == 2
    assert folder.out == ""
    assert json.loads(folder.err)["message"].startswith("notary verify: ")
    assert "Traceback" not in folder.err


# Many decisions


def lines(*changes: tuple[int, dict[str, Any]], count: int = 20) -> list[dict[str, Any]]:
    """Returns lines as `notary submit` writes them, with changed members at some places."""
    written = [{**as_object(NOTARY.decisions[at]), "receipt": NOTARY.receipt(at, 256 if at < 10 else 300)} for at in range(count)]
    for at, members in changes:
        written[at] |= members
    return written


def as_lines(objects: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def test_decisions_with_their_receipts(folder: Folder) -> None:
    """The output of `notary submit` is verified line by line, and counted; blank lines are skipped."""
    file = folder.put("decisions", "\n" + as_lines(lines()).replace("}\n", "}\n\n"))
    assert folder.verify(file) == 0
    assert folder.out.startswith("verified: 20 decisions")
    assert folder.found(file) == {"verified": True, "decisions": 20, **TREE}


def test_the_first_failures_are_listed(folder: Folder) -> None:
    """The first few failures are reported by line and reason, all are counted, and the exit code is 1."""
    bad = [(at, {"log_time": 0}) for at in range(3, 12)]
    file = folder.put("decisions", as_lines(lines(*bad, (1, {"receipt": None}), (2, {"receipt": NOTARY.receipt(3)}))))
    assert folder.verify(file) == 1
    printed = folder.err.splitlines()
    assert [line.split(": ")[1:3] for line in printed[:3]] == [
        ["line 2", "malformed-receipt"],
        ["line 3", "wrong-position"],
        ["line 4", "wrong-root"],
    ]
    assert len(printed) == 6
    assert printed[-1] == "notary verify: 11 of 20 decisions do not verify"
    found = folder.found(file)
    assert (found["decisions"], found["failed"], found["reason"]) == (20, 11, "malformed-receipt")
    assert [each["line"] for each in found["failures"]] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("content", ["", "\n\n", "{", "[]", "[1]\n", "{}\n" * 3, b"{\xff}", "{" * 100_000])
def test_what_holds_no_decision(folder: Folder, content: Any) -> None:
    """An empty file, or other content, is never a success."""
    assert not folder.found(folder.put("decisions", content))["verified"]


def test_two_trees_of_one_size(folder: Folder) -> None:
    """Valid receipts whose checkpoints contradict each other are reported: the notary signed two trees."""
    forked = {**as_object(FORK.decisions[5]), "receipt": FORK.receipt(5)}
    assert folder.found(folder.put("decisions", as_lines([*lines(count=15), forked])))["reason"] == "inconsistent"


def test_two_decisions_at_one_position(folder: Folder) -> None:
    """Their checkpoints are of different sizes, which are not compared without tiles; the same decision in both is no contradiction."""
    decided = {**as_object(NOTARY.decisions[150]), "receipt": NOTARY.receipt(150)}
    other = {**as_object(FORK.decisions[150]), "receipt": FORK.receipt(150, 200)}
    found = folder.found(folder.put("decisions", as_lines([decided, *lines(count=5), other])))
    assert found["failures"] == [
        {"line": 7, "reason": "inconsistent", "detail": "the notary signed another decision at position 150, that of line 1"}
    ]
    same = {**as_object(FORK.decisions[50]), "receipt": FORK.receipt(50, 200)}
    assert folder.verify(folder.put("decisions", as_lines([*lines(count=60), same]))) == 0


SPENT = bytes(36)


def lie(position: int, seed: int, consumer: bytes = b"", log_time_ms: int = 5) -> dict[str, Any]:
    """Returns a decision with a receipt. It is proven, in a tree of its own size; `consumer` is the hash that it cites for `SPENT`."""
    conflicts = (Conflict(SPENT, Kind.INPUT, consumer),) if consumer else ()
    decision = Decision(position, bytes((seed,)) * 32, Outcome.INPUT_CONFLICT if consumer else Outcome.COMMITTED, log_time_ms, conflicts)
    tree = Grown([*NOTARY.decisions[:position], decision])
    return {**as_object(decision), "receipt": tree.receipt(position)}


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ([lie(1, 1), lie(2, 1)], f"another decision of transaction {'01' * 32}, that of line 1"),
        ([lie(1, 1, b"a" * 32), lie(2, 2, b"b" * 32)], f"another consumer of state {'00' * 32}:0, in line 1"),
        ([lie(2, 2, sha256(bytes((2,)) * 32).digest())], f"the rejected transaction itself as the consumer of state {'00' * 32}:0"),
        ([lie(1, 1, b"a" * 32), lie(2, 2, b"b" * 32, 4)], f"another consumer of state {'00' * 32}:0, in line 1"),
        ([lie(2, 2, log_time_ms=4), lie(1, 1)], "log time falls from 5 at position 1, in line 2, to 4 at position 2"),
    ],
    ids=["a transaction decided twice", "two consumers", "consumed by itself", "two in one line", "log time falls"],
)
def test_decisions_that_contradict_each_other(folder: Folder, lies: list[dict[str, Any]], why: str) -> None:
    """Each has a valid receipt, in trees of different sizes. One line of them is reported, once."""
    found = folder.found(folder.put("decisions", as_lines(lies)))
    assert (found["reason"], found["failed"], len(found["failures"])) == ("inconsistent", 1, 1)
    assert why in found["detail"]


def test_a_decision_that_contradicts_itself(folder: Folder) -> None:
    """A rejection because of the rejected transaction itself."""
    rejection = lie(2, 2, sha256(bytes((2,)) * 32).digest())
    folder.put("receipt", rejection.pop("receipt"))
    folder.put("decision", rejection)
    assert folder.found("receipt", "--decision", "decision")["reason"] == "inconsistent"


def test_what_only_looks_like_a_contradiction(folder: Folder) -> None:
    """One consumer cited twice, the same decision twice, and equal log times; another notary has its own positions, and is named."""
    other = Grown(random_decisions(5, seed=9), origin="other.example", seed="other")
    others = [{**as_object(one), "receipt": other.receipt(one.position)} for one in other.decisions]
    lies = [lie(1, 1, b"a" * 32), lie(2, 2, b"a" * 32), lie(1, 1, b"a" * 32), *others]
    file = folder.put("decisions", as_lines(lies))
    assert folder.verify(file, "--verifier-key", str(other.key)) == 0
    assert f"of other.example with 5 decisions, root {other.view().root.hex()}; and of {ORIGIN} with 3 decisions, root " in folder.out
    found = folder.found(file, "--verifier-key", str(other.key))
    assert [(each["origin"], each["tree_size"]) for each in (found, *found["others"])] == [("other.example", 5), (ORIGIN, 3)]


def test_a_file_to_compare_with_is_named(folder: Folder) -> None:
    """Two files are checkpoints: the message says which of them is malformed."""
    checkpoint = folder.put("checkpoint", NOTARY.checkpoint())
    for content in ("", b"\xff", "c2sp.org/tlog-proof@v1\n", b"c2sp.org/tlog-proof@v1\n\xff"):
        other = folder.put("other", content)
        assert folder.found(checkpoint, "--consistent-with", other)["detail"].startswith(f"{other}: ")


def test_an_endless_line_is_an_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless line is not read into memory, and is an error, exit 2."""
    monkeypatch.setattr("notary.cli.verify.FILE_BYTES_MAX", 5000)
    assert folder.verify(folder.put("decisions", as_lines(lines()) + "{" + "x" * 6000)) == 2
    assert folder.verify("receipt", "--decision", folder.put("decision", "x" * 6000)) == 2
    assert "too large" in folder.err


# Checkpoints


def test_a_checkpoint_of_tiles_at_an_ipv6_address(folder: Folder) -> None:
    """Its origin begins as a JSON array does."""
    notary = Grown(random_decisions(3), origin="[2001:db8::1]:8443/london")
    file = folder.put("checkpoint", notary.checkpoint())
    assert folder.verify(file, key=str(notary.key)) == 0


def test_a_checkpoint_alone_is_verified(folder: Folder) -> None:
    """The signature of a checkpoint alone is verified."""
    file = folder.put("checkpoint", NOTARY.checkpoint())
    assert folder.verify(file) == 0
    assert folder.out == f"verified: a checkpoint of the tree of {ORIGIN} with 300 decisions, root {TREE['root']}\n"
    assert folder.found(file) == {"verified": True, **TREE}
    assert folder.found(folder.put("other", NOTARY.checkpoint().replace("300", "301")))["reason"] == "bad-signature"
    assert folder.found(folder.put("other", "hello\n"))["reason"] == "malformed-checkpoint"


@pytest.mark.parametrize("older", [0, 1, 100, 255, 256, 257, 300])
def test_a_checkpoint_is_consistent_with_older_and_newer_ones(folder: Folder, older: int) -> None:
    """A checkpoint, bare or from a receipt, is consistent with an older and a newer one."""
    tiles = folder.put_tiles(NOTARY)
    checkpoint, newest = folder.put("older", NOTARY.checkpoint(older)), folder.put("newest", NOTARY.checkpoint())
    more = ("--tiles", tiles)
    found = folder.found("receipt", "--decision", "decision", "--consistent-with", checkpoint, *more)
    assert found == {
        "verified": True,
        "position": 5,
        **TREE,
        "consistent_with": {**TREE, "tree_size": older, "root": found["consistent_with"]["root"]},
    }
    assert folder.verify(checkpoint, "--consistent-with", newest, *more) == 0
    assert folder.out.endswith("; consistent with that of 300 decisions\n")
    assert folder.verify(checkpoint, "--consistent-with", "receipt", *more) == 0
    assert folder.verify(folder.put("decisions", as_lines(lines())), "--consistent-with", checkpoint, *more) == 0


def test_two_signed_trees_are_exposed(folder: Folder) -> None:
    """A notary that signed two trees is exposed with the tiles of the larger; tiles of another tree show nothing."""
    fork, tiles = folder.put("fork", FORK.checkpoint(200)), folder.put_tiles(NOTARY)
    same_size = folder.put("same", FORK.checkpoint(300))
    words = ("receipt", "--decision", "decision", "--consistent-with")
    assert folder.found(*words, fork, "--tiles", tiles)["reason"] == "inconsistent"
    assert "notary verify: inconsistent: the notary signed two trees" in folder.err
    assert folder.found(*words, same_size)["reason"] == "inconsistent"
    forged = folder.put("forged", NOTARY.checkpoint().replace("300", "299"))
    assert folder.found(*words, forged, "--tiles", tiles)["reason"] == "bad-signature"
    older = folder.put("older", NOTARY.checkpoint(200))
    assert folder.found(*words, older, "--tiles", folder.put_tiles(FORK))["reason"] == "wrong-tile"


def test_two_trees_with_one_beginning(folder: Folder) -> None:
    """Both trees of the decisions are consistent with the smaller checkpoint. Partial tiles of each do not make them one tree."""
    tiles = folder.put_tiles(Grown(NOTARY.decisions[:150]))
    folder.put_tiles(Grown(FORK.decisions[:200]))
    lies = [{**as_object(each.decisions[5]), "receipt": each.receipt(5, size)} for each, size in ((NOTARY, 150), (FORK, 200))]
    file, older = folder.put("decisions", as_lines(lies)), folder.put("older", NOTARY.checkpoint(100))
    assert folder.found(file, "--consistent-with", older, "--tiles", tiles)["reason"] == "inconsistent"


def test_tiles_that_are_not_there(folder: Folder) -> None:
    """A missing folder, option or tile, and a tile that is too short, give exit 2 and the name of what is needed."""
    older, tiles = folder.put("older", NOTARY.checkpoint(200)), folder.put_tiles(NOTARY)
    words = ("receipt", "--decision", "decision", "--consistent-with", older)
    assert folder.verify(*words) == 2
    assert "--tiles" in folder.err
    assert folder.verify(*words, "--tiles", str(folder.path / "nowhere")) == 2
    partial = folder.path / "tiles/tile/0/001.p/44"
    complete = partial.read_bytes()
    folder.put("tiles/tile/0/001.p/44", complete[:-1])
    assert folder.verify(*words, "--tiles", tiles) == 2
    assert "tile/0/001.p/44" in folder.err
    partial.unlink()
    assert folder.verify(*words, "--tiles", tiles) == 2
    folder.put("tiles/tile/0/001.p/45", complete + bytes(32))
    assert folder.verify(*words, "--tiles", tiles) == 0


def test_tiles_that_have_grown(folder: Folder) -> None:
    """A wider partial tile, and the full one, work as well as the tile of that width."""
    grown = Grown([*NOTARY.decisions, *random_decisions(600, seed=5)[300:]])
    older, newer = folder.put("older", NOTARY.checkpoint(200)), folder.put("newer", NOTARY.checkpoint(299))
    assert folder.verify(older, "--consistent-with", newer, "--tiles", folder.put_tiles(grown)) == 0


def test_files_in_another_form_are_named_with_the_remedy(folder: Folder) -> None:
    """Files in each other's place, a JSON array and a decision on several lines: the message names the file, or the form that is needed."""
    assert folder.found("receipt", "--decision", "receipt")["reason"] == "malformed-decision"
    assert f"malformed-decision: {folder.path / 'receipt'}: it is no JSON" in folder.err
    decision = as_object(NOTARY.decisions[5]) | {"receipt": NOTARY.receipt(5)}
    assert folder.found(folder.put("array", [decision]))["reason"] == "malformed-checkpoint"
    assert f"{folder.path / 'array'} is neither a receipt, nor decisions with one JSON object a line, nor a checkpoint: " in folder.err
    assert folder.found(folder.put("lines", json.dumps(decision, indent=1)))["reason"] == "malformed-decision"
    assert "line 1: malformed-decision: it is no JSON: " in folder.err
    assert folder.err.count("give each decision on a line of its own") == 5
    assert folder.verify("receipt", "--decision", "decision", key="notary.pub") == 2
    assert "this is 'notary.pub'. Copy it completely" in folder.err


# Key history


def test_a_key_history_verifies_forwards_only(folder: Folder) -> None:
    """With the first key and the answer of `GET /v1/notary`, receipts under the last key verify; never the other way round."""
    new = verifier_key("new")
    history = msgspec.to_builtins([HistoricKey(KEY), endorse(NOTARY.key, private_key("notary"), new)])
    renewed = Grown(NOTARY.decisions, seed="new")
    folder.put("receipt", renewed.receipt(5))
    words = ("receipt", "--decision", "decision")
    assert folder.found(*words)["reason"] == "unknown-key"
    assert "name the answer of GET /v1/notary with --key-history" in folder.err
    for file in (folder.put("keys", history), folder.put("answer", {"name": "O=N", "keys": history})):
        assert folder.verify(*words, "--key-history", file) == 0
    folder.put("receipt", NOTARY.receipt(5))
    assert folder.found(*words, "--key-history", "keys", key=str(new))["reason"] == "unknown-key"


def test_a_bad_key_history(folder: Folder) -> None:
    """A malformed history, or one with a bad endorsement, is rejected, even when the known key alone would do."""
    words = ("receipt", "--decision", "decision", "--key-history")
    assert folder.found(*words, folder.put("keys", "hello"))["reason"] == "malformed-key"
    bare = [{"verifier_key": KEY}, {"verifier_key": str(verifier_key("thief"))}]
    assert folder.found(*words, folder.put("keys", bare))["reason"] == "bad-endorsement"
    assert f"bad-endorsement: {folder.path / 'keys'}: " in folder.err


def test_messages_cannot_command_a_terminal(folder: Folder) -> None:
    """Text from hostile files is escaped."""
    folder.put("decision", {"\x1b[2J\x9b": 1})
    assert folder.verify("receipt", "--decision", "decision") == 1
    assert folder.err.strip().isprintable()
