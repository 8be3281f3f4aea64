"""Tests the notary's published data with tools of others, and theirs with ours (`main.go` lists the tools).

The Go program is built from pinned modules; `go.sum` has their hashes.
"""

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from notary.decision import leaf
from notary.receipts import NotVerified
from notary.receipts.key_history import endorse
from notary.tree import TILE_WIDTH, format_tile_path
from notary.tree.paths import INDEX_MAX
from notary.verify import verify_checkpoint, verify_receipt
from tests.notary.receipts.grown import ORIGIN, Grown, base64_of, private_key, random_decisions, verifier_key

pytestmark = pytest.mark.go

HERE = Path(__file__).parent
KEY = str(verifier_key("notary"))


@cache
def notary() -> Grown:
    """Returns the notary of these tests. It is made on demand: its tree of three levels of tiles takes a second."""
    return Grown(random_decisions(70_000))


@cache
def fork() -> Grown:
    """Returns the same notary with other decisions from position 500 on."""
    return Grown([*notary().decisions[:500], *random_decisions(1000, seed=2)[500:]])


Ask: TypeAlias = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Build the program; returns a function that sends it questions and returns its answers, in order."""
    if shutil.which("go") is None:
        pytest.fail(
            "these tests need Go 1.25 or newer on the PATH (https://go.dev/dl): install it, or leave them out with `-m 'not go'`",
            pytrace=False,
        )
    program = tmp_path_factory.mktemp("outsiders") / "outsiders"
    built = subprocess.run(
        ["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."], cwd=HERE, capture_output=True, text=True
    )
    assert built.returncode == 0, f"the program does not build (the first time its modules are fetched):\n{built.stderr}"

    def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = "".join(json.dumps(question) + "\n" for question in questions)
        done = subprocess.run([str(program)], input=lines, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == len(questions)
        return answers

    return ask


def about(position: int, receipt: str, key: str = KEY) -> dict[str, Any]:
    return {"do": "receipt", "key": key, "leaf": leaf(notary().decisions[position]).hex(), "receipt": receipt}


def places(count: int, seed: int) -> list[tuple[int, int]]:
    """Returns (size, position) pairs: the ends of trees around full tiles, then random ones."""
    edges = [(size, at) for size in (1, 2, 255, 256, 257, 65_535, 65_536, 65_537, 70_000) for at in {0, size // 2, size - 1}]
    chance = random.Random(seed)
    sizes = [chance.choice([3, 100, 512, 5000, 65_793, 70_000]) for _ in range(count)]
    return (edges + [(size, chance.randrange(size)) for size in sizes])[:count]


def put_tiles(folder: Path, whose: Grown) -> str:
    for name, content in whose.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


# Receipts


def test_they_accept_our_receipts(ask: Ask) -> None:
    """They accept 200 receipts from trees of many sizes: each proves its decision under the root that we compute too."""
    asked = places(200, 1)
    answers = ask([about(position, notary().receipt(position, size)) for size, position in asked])
    assert answers == [{"ok": True, "size": size, "root": notary().view(size).root.hex()} for size, _ in asked]


def test_they_refuse_what_we_refuse(ask: Ask) -> None:
    """They reject the same receipts for the next decision, or with a changed hash, index, size, root or key, or truncated."""
    questions = []
    for size, position in places(200, 2):
        receipt = notary().receipt(position, size)
        head, checkpoint = receipt.split("\n\n", 1)
        lines = head.split("\n")
        questions += [
            about(position - 1 if position else 1, receipt),
            about(position, receipt.replace(f"index {position}\n", f"index {position + 1}\n")),
            about(position, receipt.replace(f"\n{size}\n", f"\n{size + 1}\n")),
            about(position, receipt.replace(base64_of(notary().view(size).root), base64_of(bytes(32)))),
            about(position, receipt, str(verifier_key("another"))),
            about(position, receipt, str(verifier_key("notary", "notary.example/other"))),
            about(position, receipt[:-3]),
            about(position, receipt[: len(head) + 2]),
            about(position, "\n".join([*lines, base64_of(bytes(32))]) + "\n\n" + checkpoint),
        ]
        for at in range(2, len(lines)):
            changed = [*lines[:at], base64_of(bytes(32)), *lines[at + 1 :]]
            questions.append(about(position, "\n".join(changed) + "\n\n" + checkpoint))
            questions.append(about(position, "\n".join([*lines[:at], *lines[at + 1 :]]) + "\n\n" + checkpoint))
    answers = ask(questions)
    assert [answer["ok"] for answer in answers] == [False] * len(questions)
    assert not [answer for answer in answers if "disagree" in answer["error"]]


def mutated(chance: random.Random, receipt: str) -> str:
    """Returns a receipt with a few letters or lines changed."""
    for _ in range(chance.randint(1, 2)):
        match chance.randrange(5):
            case 0:
                at = chance.randrange(len(receipt))
                receipt = receipt[:at] + chance.choice("AB01+/=\n\r \t—xé") + receipt[at + 1 :]
            case 1:
                at = chance.randrange(len(receipt))
                receipt = receipt[:at] + receipt[at + chance.randint(1, 3) :]
            case 2:
                lines = receipt.splitlines(keepends=True)
                lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
                receipt = "".join(lines)
            case 3:
                lines = receipt.splitlines(keepends=True)
                del lines[chance.randrange(len(lines))]
                receipt = "".join(lines)
            case 4:
                receipt += "— witness.example " + base64_of(chance.randbytes(80)) + "\n"
    return receipt or "\n"


def test_what_we_accept_they_accept(ask: Ask) -> None:
    """A receipt that they reject is never accepted by us, out of 5,000 with changed letters and lines: our check is the stricter one."""
    chance = random.Random(3)
    ours, questions = [], []
    for _ in range(5000):
        size = chance.choice([1, 3, 100, 257])
        position = chance.randrange(size)
        receipt = mutated(chance, notary().receipt(position, size))
        try:
            verify_receipt(receipt, notary().decisions[position], KEY)
            ours.append(True)
        except NotVerified:
            ours.append(False)
        questions.append(about(position, receipt))
    theirs = [answer["ok"] for answer in ask(questions)]
    assert not [question for question, we, they in zip(questions, ours, theirs, strict=True) if we and not they]
    assert 100 < sum(ours) < 4900


def test_a_log_that_they_make_is_ours_to_the_byte(ask: Ask) -> None:
    """From the same leaves and the same key their tools publish the same checkpoints and receipts, byte for byte."""
    secret = private_key("notary").private_bytes_raw()
    signer = f"PRIVATE+KEY+{ORIGIN}+{notary().key.key_id.hex()}+{base64_of(bytes([1]) + secret)}"
    sizes = [0, 1, 2, 3, 100, 255, 256, 257, 600]
    leaves = [leaf(decision).hex() for decision in notary().decisions[:600]]
    answers = ask([{"do": "issue", "key": signer, "origin": ORIGIN, "leaves": leaves[:size]} for size in sizes])
    for size, answer in zip(sizes, answers, strict=True):
        assert answer["ok"], answer
        assert answer["note"] == notary().checkpoint(size)
        assert answer.get("receipts", []) == [notary().receipt(position, size) for position in range(size)]
        assert verify_checkpoint(answer["note"], KEY).size == size


# Notes


def test_they_open_our_checkpoints(ask: Ask) -> None:
    """Two readers of checkpoints parse ours to the same values, and reject a changed one and one under another key."""
    sizes = [0, 1, 256, 65_537, 70_000]
    answers = ask([{"do": "checkpoint", "key": KEY, "note": notary().checkpoint(size)} for size in sizes])
    assert [(answer["ok"], answer.get("size", 0), answer["root"]) for answer in answers] == [
        (True, size, notary().view(size).root.hex()) for size in sizes
    ]
    cosigned = notary().checkpoint() + "— witness.example " + base64_of(bytes(80)) + "\n"
    changed = notary().checkpoint().replace("70000", "70001")
    other = str(verifier_key("another"))
    questions = [(cosigned, KEY), (changed, KEY), (notary().checkpoint(), other), (notary().checkpoint()[:-1], KEY)]
    assert [a["ok"] for a in ask([{"do": "checkpoint", "key": key, "note": note} for note, key in questions])] == [
        True,
        False,
        False,
        False,
    ]


def test_they_open_our_endorsements(ask: Ask) -> None:
    """An endorsement of the key history is a note of four lines to them, signed by the former key."""
    new = verifier_key("new")
    note = endorse(notary().key, private_key("notary"), new).endorsement
    text = f"notary/key/v1\n{ORIGIN}\n{KEY}\n{new}\n"
    question = {"do": "note", "key": KEY, "note": note, "text": text}
    answers = ask(
        [question, {**question, "key": str(new)}, {**question, "text": text + "\n"}, {**question, "do": "checkpoint", "text": ""}]
    )
    assert [answer["ok"] for answer in answers] == [True, False, False, False]


# Tiles


def test_they_find_our_tiles(ask: Ask) -> None:
    """Our tiles have the paths that their tools expect, for any level, index and width."""
    chance = random.Random(4)
    tiles = [
        (chance.randint(-1, 63), chance.randint(0, min(INDEX_MAX, 10 ** chance.randint(0, 17))), chance.randint(1, TILE_WIDTH))
        for _ in range(2000)
    ]
    answers = ask([{"do": "path", "level": level, "index": index, "width": width} for level, index, width in tiles])
    ours = [format_tile_path(None if level < 0 else level, index, width) for level, index, width in tiles]
    assert [answer["path"] for answer in answers] == ours


def test_they_find_our_checkpoints_consistent(ask: Ask, tmp_path: Path) -> None:
    """From our tiles, as files, they compute both roots, and prove that one tree is a prefix of the other."""
    questions = []
    for newer in (1, 2, 256, 257, 600, 65_536, 65_537, 70_000):
        tiles = put_tiles(tmp_path / str(newer), Grown(notary().decisions[:newer]))
        for older in {1, 2, 3, 255, 256, 257, 512, 599, 65_535, 65_536, newer - 1, newer}:
            if 0 < older <= newer:
                pair = {"older": notary().checkpoint(older), "newer": notary().checkpoint(newer)}
                questions.append({"do": "consistency", "key": KEY, "tiles": tiles, **pair})
    assert [answer for answer in ask(questions) if not answer["ok"]] == []


def test_they_find_a_fork(ask: Ask, tmp_path: Path) -> None:
    """They reject checkpoints of two trees, and tiles of another tree."""
    tiles = put_tiles(tmp_path / "tiles", Grown(notary().decisions[:1000]))
    question = {"do": "consistency", "key": KEY, "tiles": tiles, "older": notary().checkpoint(600), "newer": notary().checkpoint(1000)}
    forks = [
        {**question, "older": fork().checkpoint(600)},
        {**question, "newer": fork().checkpoint(1000)},
        {**question, "tiles": put_tiles(tmp_path / "fork", fork())},
    ]
    assert [answer["ok"] for answer in ask([question, *forks])] == [True, False, False, False]


def test_they_mirror_our_log(ask: Ask, tmp_path: Path) -> None:
    """Their monitor reads every entry, and finds each in the tree of the signed checkpoint; it finds one changed byte."""
    tiles = put_tiles(tmp_path, Grown(notary().decisions[:1000]))
    question = {"do": "mirror", "key": KEY, "note": notary().checkpoint(1000), "tiles": tiles}
    assert ask([question]) == [{"ok": True}]
    for name in ("tile/entries/001", "tile/0/003.p/232", "tile/1/000.p/3", "tile/0/002"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        assert not ask([question])[0]["ok"], name
        (tmp_path / name).write_bytes(content)
    assert ask([question]) == [{"ok": True}]
