"""`notary salvage` on real logs that lost their end, with real indexes and receipts that survived."""

import asyncio
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from notary import cli, keys
from notary.access import alone_in
from notary.agreement import Agreement
from notary.cli import failover, salvage
from notary.cli.owner import CommandOutcome, OwnedLog
from notary.cli.replay import Replay
from notary.config import load
from notary.index import rows, viewing
from notary.index.meta import encode
from notary.salvage import indexes
from notary.salvage.statements import THE_LOG, ChoiceRefused, SourceRefused
from notary.verify import decision_and_receipt, verify_receipt
from ordering.durable import move_into_place
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, Fatal, NotaryError, NotReady, OutOfRange
from ordering.log import ORDERING, LogOffsets
from ordering.records import Entry, Key, OwnerRecord, SalvageBegin, decode
from ordering.salvage import Hashed, encode_items
from ordering.signatures import SigningKey, endorse_key
from ordering.store import KEY, open_store
from tests.kafka.reading_back import read_log_records
from tests.notary.cli.command import Command
from tests.notary.cli.written import die, entry, fill, log_ends, register, write
from tests.notary.http.checked_client import CheckedClient, serving
from tests.notary.party import Bank, RequestObject, fresh_state, spend
from tests.notary.process import NotaryDirectory
from tests.notary.rows import opened, put_row
from tests.open_files import errors_with_few_open_files

pytestmark = pytest.mark.seconds


class Wreck:
    """A notary with two rounds of decisions, and the log's ends after the first."""

    def __init__(self, directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.command = directory, Command(capsys, "salvage", config=directory.config)
        self.index = directory.path / "survivor"
        said: dict[str, Any] = json.loads((directory.path / "said.json").read_text())
        self.requests: list[RequestObject] = said["requests"]
        self.decisions: list[dict[str, Any]] = said["decisions"]
        self.ends: dict[int, int] = {int(partition): end for partition, end in said["ends"].items()}

    def cut(self, partitions: Sequence[int] | None = None, *, records: int = 1 << 30) -> None:
        """Lose the end of these topic-partitions (default: of all), as the first round left them, or the last `records` records."""
        ends = log_ends(self.directory.path)
        store, _ = open_store(self.directory.path / "log")
        for partition in self.ends if partitions is None else partitions:
            for offset in range(max(self.ends[partition], ends[partition] - records), ends[partition]):
                store.delete(KEY.pack(partition + 1, offset))
        store.close()

    def salvage(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        """Run `notary salvage --json`, which should exit with that code. Returns its object; `stderr` is its complaints."""
        printed = self.command.run("--json", *arguments, code=code)
        return {**(json.loads(printed) if printed else {}), "stderr": self.command.err}

    def refused(self, *arguments: object, code: int = 2) -> str:
        """Run it where it should refuse, and append nothing. Returns its complaints."""
        before = log_ends(self.directory.path)
        complaints: str = self.salvage(*arguments, code=code)["stderr"]
        assert log_ends(self.directory.path) == before
        return complaints

    def plan(self, *arguments: object, code: int = 0) -> str:
        """Returns the plan of `notary salvage` for people."""
        return self.command.run("--plan", *arguments, code=code)

    def receipts(self, places: Sequence[int], *, requests: bool = True) -> Path:
        """Write the receipts of these places of `decisions`, as a party keeps them. Returns their folder."""
        folder = self.directory.path / "receipts"
        folder.mkdir(exist_ok=True)
        (folder / "decisions.jsonl").write_text("".join([json.dumps(self.decisions[place]) + "\n" for place in places]))
        if requests:
            (folder / "requests.json").write_text(json.dumps([self.requests[place] for place in places]))
        return folder

    def serving(self) -> AbstractContextManager[CheckedClient]:
        """Run a worker, which began on an empty disk, for the length of a block. Yields its client."""
        return serving(self.directory.config, "fresh")

    @property
    def root(self) -> str:
        """The root of the survivor's tree."""
        with viewing(self.index) as view:
            return view.root.hex()

    def check(self, client: CheckedClient, places: Sequence[int]) -> None:
        """Compare the decisions at these places with what the worker answers now."""
        for place in places:
            wanted = {name: value for name, value in self.decisions[place].items() if name != "receipt"}
            assert client.get(f"/v1/transactions/{wanted['transaction_id']}").json() == wanted


def decide(client: CheckedClient, bank: Bank, *requests: RequestObject) -> list[dict[str, Any]]:
    """Returns decisions with their receipts."""
    decisions: list[dict[str, Any]] = client.post(bank.body(*requests)).json()["decisions"]
    return decisions


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> NotaryDirectory:
    """A notary whose worker decided 6 transactions, and then 6 more: four commits and two double spends."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("wreck") / "notary")
    directory.register(bank)
    with serving(directory.config) as client:
        for _ in range(6):
            decide(client, bank, spend())
    assert cli.main(["retire", "worker-1", "--config", str(directory.config)]) == 0
    ends = log_ends(directory.path)
    coin = fresh_state()
    requests = [spend(coin), spend(), spend(coin), spend(), spend(), spend(coin)]
    with serving(directory.config) as client:
        decisions = [decide(client, bank, request)[0] for request in requests]
    (directory.path / "index" / "worker-1").rename(directory.path / "survivor")
    said = {"requests": requests, "decisions": decisions, "ends": ends}
    (directory.path / "said.json").write_text(json.dumps(said))
    return directory


@pytest.fixture
def intact(template: NotaryDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Wreck:
    """A copy of the template for one test."""
    shutil.copytree(template.path, tmp_path / "notary")
    return Wreck(NotaryDirectory(tmp_path / "notary"), capsys)


@pytest.fixture
def wreck(intact: Wreck) -> Wreck:
    """The same with a log that has lost the second round."""
    intact.cut()
    return intact


def test_an_index_gives_everything_back(wreck: Wreck, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log loses its end; a surviving index gives all of it back: a worker on an empty disk has the same decisions and the same root."""
    monkeypatch.setattr(salvage, "ITEMS_BYTES", 500)  # several records
    monkeypatch.setattr(indexes, "AT_ONCE", 4)
    owner_key = wreck.directory.path / "owner-key.pem"
    owner_key.rename(owner_key.with_name("elsewhere"))
    assert wreck.salvage("--index", wreck.index, "--plan")["decisions_put_back"] == 6
    owner_key.with_name("elsewhere").rename(owner_key)
    done = wreck.salvage("--index", wreck.index, "--yes")
    assert (done["done"], done["decisions"], done["root"], done["lost"], done["no_consistency_proof"]) == (True, 12, wreck.root, [], [])
    with wreck.serving() as client:
        wreck.check(client, range(6))
        assert client.decide(bank, wreck.requests[1])[0]["position"] == 7
        again = client.decide(bank, spend(wreck.requests[0]["inputs"][0]))[0]
        assert (again["reason"], again["position"]) == ("input-conflict", 12)
    assert wreck.salvage("--index", wreck.index, "--plan")["done"] is False, "an index that is smaller than the log has nothing for it"


def test_a_payload_topic_that_lost_its_end(intact: Wreck, bank: Bank) -> None:
    """Only the payload partitions lose their end: the entry without content is sealed, and an index gives everything back."""
    intact.cut([partition for partition in intact.ends if partition != ORDERING])
    plan = intact.salvage("--index", intact.index, "--plan")
    assert (plan["seals"], plan["decisions_put_back"], plan["waiting"]) == (True, 6, [[place, place] for place in range(6, 12)])
    assert plan["suspected"] == {}
    done = intact.salvage("--index", intact.index, "--yes")
    assert (done["decisions"], done["root"]) == (12, intact.root)
    with intact.serving() as client:
        intact.check(client, range(6))
        client.decide(bank, spend())


def test_receipts_without_an_index(wreck: Wreck, bank: Bank) -> None:
    """Without any index, receipts give their decisions back; a conflict reserves its state; lost transactions may be sent again."""
    done = wreck.salvage("--receipts", wreck.receipts([2, 4]), "--yes")
    assert (done["decisions"], done["same_roots_to"]) == (11, 6)
    assert [each["size"] for each in done["no_consistency_proof"]] == [9, 11]
    assert done["lost"][0] == [6, 7]
    with wreck.serving() as client:
        wreck.check(client, [2, 4])
        coin = wreck.requests[0]["inputs"][0]
        # The coin is reserved for its first spender, whose decision nobody has.
        assert client.decide(bank, spend(coin))[0]["reason"] == "input-conflict"
    fresh = wreck.directory.path / "index" / "fresh"
    assert wreck.salvage("--index", fresh, "--plan")["done"] is False, "the coin is reserved there too"
    with wreck.serving() as client:
        assert client.decide(bank, wreck.requests[0])[0]["outcome"] == "committed"


def test_a_receipt_without_its_request_is_refused(wreck: Wreck) -> None:
    """The receipt of a committed transaction needs its request, or an index that has its position; nothing is appended."""
    before = log_ends(wreck.directory.path)
    refused = wreck.salvage("--receipts", wreck.receipts([4], requests=False), "--yes", code=1)
    assert refused["position"] == 10
    assert "without its request" in refused["refused"]
    assert log_ends(wreck.directory.path) == before
    assert wreck.salvage("--index", wreck.index, "--receipts", wreck.directory.path / "receipts", "--plan")["end"] == 12


def test_a_log_that_went_on(wreck: Wreck, bank: Bank) -> None:
    """A worker went on in the cut log, so index and log contradict each other: the command refuses, with the position and both names."""
    with wreck.serving() as client:
        (decision,) = client.decide(bank, spend())
        client.decide(bank, spend())
    refused = wreck.salvage("--index", wreck.index, "--yes", code=1)
    assert refused["position"] == 6
    assert sorted(refused["sides"]) == [[str(wreck.index)], ["the log"]]
    records = asyncio.run(read_log_records(load(wreck.directory.config)))[ORDERING]
    named = decode(records[refused["until"]].value)
    assert isinstance(named, Entry)
    assert bytes.fromhex(decision["transaction_id"]) in named.transaction_ids
    assert "copy the log up to before position 6" in wreck.plan("--index", wreck.index, code=1), "no archive has an embedded log"


def test_a_refusal_is_reported_without_the_record_that_decided(wreck: Wreck, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log fails while that record is looked for. The refusal names position and sides nevertheless."""
    with wreck.serving() as client:
        client.decide(bank, spend())

    problems: list[NotaryError] = [NotReady("the log returned no record for 30 s"), OutOfRange("Kafka has no records at these offsets")]
    for problem in problems:

        class Silent(Replay):
            async def read_to_end(self, problem: NotaryError = problem) -> None:
                raise problem

        monkeypatch.setattr(salvage, "Replay", Silent)
        refused = wreck.salvage("--index", wreck.index, "--yes", code=1)
        assert (refused["position"], refused["until"]) == (6, None)
        assert f"was not found: {problem}" in refused["stderr"]


def test_a_log_that_went_on_without_a_decision(wreck: Wreck, bank: Bank) -> None:
    """A worker filled a late entry of the cut log. It decides nothing, so the index has the same decisions, although log time went on."""
    late = entry(2, 1, b"lost")
    write(wreck.directory.path, [register("worker-1", 9), late, fill(wreck.directory.path, late)])
    done = wreck.salvage("--index", wreck.index, "--yes")
    assert (done["decisions"], done["root"]) == (12, wreck.root)
    with wreck.serving() as client:
        wreck.check(client, range(6))
        assert client.decide(bank, spend())[0]["log_time"] >= wreck.decisions[-1]["log_time"]


def test_nothing_is_missing(intact: Wreck) -> None:
    """With nothing lost the command appends nothing."""
    before = log_ends(intact.directory.path)
    assert intact.salvage("--index", intact.index, "--yes")["done"] is False
    assert log_ends(intact.directory.path) == before


@pytest.mark.parametrize(("answer", "code"), [("12", 0), ("yes", 1)])
def test_a_person_is_asked_on_a_terminal(wreck: Wreck, answer: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the command asks for the number of decisions that the log then has; any other answer appends nothing.

    Without a terminal to ask on, it appends nothing unless it is given --yes.
    """
    assert "give --yes" in wreck.refused("--index", wreck.index)
    before = log_ends(wreck.directory.path)
    terminal = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    printed = wreck.command.run("--index", wreck.index, code=code)
    assert "Type the number of decisions" in wreck.command.err
    assert ("took effect" in printed) == (code == 0)
    assert (log_ends(wreck.directory.path) == before) == (code == 1)


def test_a_machine_without_the_present_key(wreck: Wreck) -> None:
    """Without the notary's present key, which has to endorse the new one, nothing is appended."""
    (wreck.directory.path / "notary-key.pem").unlink()
    assert "notary-key.pem, the notary's present key, which endorses" in wreck.refused("--index", wreck.index, "--yes")


def test_sources_that_are_none(intact: Wreck, tmp_path: Path) -> None:
    """A receipt that does not verify, an index of another log and a folder without an index are refused with their names."""
    folder = intact.receipts([1])
    changed = {**intact.decisions[1], "log_time": 1}
    (folder / "decisions.jsonl").write_text("\n" + json.dumps(changed))
    refused = intact.refused("--receipts", folder, "--plan")
    assert "decisions.jsonl:2 does not verify: wrong-root" in refused
    assert "lost a rotation" not in refused
    other = NotaryDirectory.create(tmp_path / "other")
    with serving(other.config):
        pass
    assert "is of another log" in intact.refused("--index", other.path / "index" / "worker-1", "--plan")
    assert "there is no index in" in intact.refused("--index", tmp_path, "--plan")
    with opened(intact.index) as index:
        put_row(index, "meta", rows.AGREEMENT_KEY, encode(Agreement(quarantined="a row is rotten")))
    assert "is known to be wrong: a row is rotten. Leave it out" in intact.refused("--index", intact.index, "--plan")


def test_a_plan_with_a_source_that_is_not_utf8(intact: Wreck) -> None:
    """The bytes of a folder's name that are not UTF-8 are escaped under `--json`, as in the results of other commands."""
    folder = intact.receipts([1])
    folder = folder.rename(folder.with_name(os.fsdecode(b"receipts-\xff")))
    [name] = intact.salvage("--receipts", folder, "--plan")["receipts"]
    assert name.endswith("receipts-\\udcff")


def test_the_plan_in_words(wreck: Wreck) -> None:
    """For people the plan says what is put back, what is lost for good, and which checkpoints get no consistency proof."""
    printed = wreck.plan("--receipts", wreck.receipts([4]))
    for words in (
        "put back       1 decisions",
        "lost           positions 6 to 9",
        "contradicts each answer",
        "size 11, root ",
        "nothing was appended",
    ):
        assert words in printed


def test_a_worker_starts_with_the_index_of_the_command(wreck: Wreck, bank: Bank) -> None:
    """The index that the command made of the log is a worker's index: a copy of it saves the replay."""
    wreck.salvage("--index", wreck.index, "--yes")
    shutil.copytree(wreck.directory.path / "salvage" / "index", wreck.directory.path / "index" / "fresh")
    with wreck.serving() as client:
        wreck.check(client, range(6))
        assert client.decide(bank, spend())[0]["position"] == 12


@pytest.mark.parametrize("appended", [0, 1, 2, 3, 4])
def test_a_crash_before_any_record(wreck: Wreck, appended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command dies before any of its records, or before the key is in place: the same command again completes the salvage."""
    append = OwnedLog.append
    done: list[object] = []

    async def dying(log: OwnedLog, *given: Any) -> CommandOutcome:
        if len(done) == appended:
            raise KeyboardInterrupt
        done.append(given)
        return await append(log, *given)

    with monkeypatch.context() as patch:
        patch.setattr(OwnedLog, "append", dying)
        patch.setattr(keys, "adopt", die)
        wreck.salvage("--index", wreck.index, "--yes", code=2)
    if appended == 1:
        # Only the key is in the log. It is no worker's, so even without sources something is missing.
        assert wreck.salvage("--plan")["seals"] is False
        assert "give --yes" in wreck.salvage(code=2)["stderr"]
    again = wreck.salvage("--index", wreck.index, "--yes")
    assert (again["decisions"], again["root"], again["resumed"]) == (12, wreck.root, appended == 4)
    if appended == 4:
        with wreck.serving() as client:
            wreck.check(client, range(6))


def test_a_crash_behind_a_seal(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it no record of a worker counts before a `done`, so the salvage is completed even without a source."""
    lose_key(intact)
    with monkeypatch.context() as patch:
        patch.setattr(OwnedLog, "append", die)
        intact.salvage("--yes", code=2)
    done = intact.salvage("--yes")
    assert (done["done"], done["decisions"]) == (True, 6)


def test_a_crash_before_the_goal_is_removed(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is in place, and only that file is left."""
    unlink = Path.unlink

    def dying(file: Path, missing_ok: bool = False) -> None:
        if file.name == "goal" and not missing_ok:
            raise KeyboardInterrupt
        unlink(file, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        wreck.salvage("--index", wreck.index, "--yes", code=2)
    assert wreck.salvage("--index", wreck.index, "--yes")["done"] is False


def test_one_command_works_in_a_folder(wreck: Wreck) -> None:
    """Two would write into one index."""
    work = wreck.directory.path / "salvage"
    work.mkdir()
    with alone_in(work, ""):
        assert f"another process works in the folder {work}" in wreck.refused("--plan")


def test_items_are_divided_among_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has no more bytes of items than the limit, unless one item alone has more."""
    items = [Hashed(bytes(32))] * 5
    two = 2 * len(encode_items(0, items[:1]))
    for limit, counts in ((1, [1] * 5), (two - 1, [1] * 5), (two, [2, 2, 1]), (1_000, [5])):
        monkeypatch.setattr(salvage, "ITEMS_BYTES", limit)
        assert [len(some) for some in salvage._records(7, items)] == counts


@pytest.mark.parametrize("before", [1, 2, 3])
def test_another_record_of_the_owner_comes_between(wreck: Wreck, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key that comes between the salvage's own records makes it start over with another key; it ends with the same decisions."""
    append = OwnedLog.append
    seen: list[object] = []

    async def disturbed(log: OwnedLog, record: Any, signer: SigningKey) -> CommandOutcome:
        seen.append(record)
        if len(seen) == before + 1:
            await append(log, endorse_key(SigningKey(bytes(32)), log.log_id, log.state.key), signer)
        return await append(log, record, signer)

    monkeypatch.setattr(OwnedLog, "append", disturbed)
    done = wreck.salvage("--index", wreck.index, "--yes")
    assert (done["decisions"], done["root"]) == (12, wreck.root)
    used = {record.public_key for record in seen if isinstance(record, Key)}
    assert len(used) == 2
    assert "starts over" in done["stderr"]


def test_a_second_loss_takes_the_done(wreck: Wreck) -> None:
    """The log loses the last record of the salvage: the command says that its own index does not fit, and then begins with another key."""
    first = wreck.salvage("--index", wreck.index, "--yes")
    wreck.cut([ORDERING], records=1)
    assert "Remove that folder" in wreck.refused("--index", wreck.index, "--yes")
    shutil.rmtree(wreck.directory.path / "salvage" / "index")
    second = wreck.salvage("--index", wreck.index, "--yes")
    assert (second["decisions"], second["root"]) == (12, wreck.root)
    assert second["verifier_key"] != first["verifier_key"]
    with wreck.serving() as client:
        wreck.check(client, range(6))


def key_files(wreck: Wreck) -> dict[str, bytes]:
    """Returns the content of the notary's key file and key history."""
    return {name: (wreck.directory.path / name).read_bytes() for name in ("notary-key.pem", "notary-keys.json")}


def put(wreck: Wreck, files: dict[str, bytes]) -> None:
    """Replace the key file and key history."""
    for name, content in files.items():
        (wreck.directory.path / name).write_bytes(content)


def known_keys(wreck: Wreck) -> list[str]:
    """Returns the verifier keys of the key history."""
    return [each["verifier_key"] for each in json.loads((wreck.directory.path / "notary-keys.json").read_text())]


def die_before_the_key(wreck: Wreck, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run the command until `done` is in effect, and kill it before its key is in place."""
    with monkeypatch.context() as patch:
        patch.setattr(keys, "adopt", die)
        wreck.salvage(*(arguments or ("--index", wreck.index)), "--yes", code=2)


def die_before_begin(wreck: Wreck, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """Run the command until its key is in force, and kill it before its `begin`."""
    append = OwnedLog.append

    async def die(log: OwnedLog, record: OwnerRecord, signer: SigningKey) -> CommandOutcome:
        if isinstance(record, SalvageBegin):
            raise KeyboardInterrupt
        return await append(log, record, signer)

    with monkeypatch.context() as patch:
        patch.setattr(OwnedLog, "append", die)
        wreck.salvage("--index", wreck.index, *flags, "--yes", code=2)


def test_a_plan_changes_nothing(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run that died before its key was in place, --plan reports that the salvage took effect, and leaves the key where it is."""
    die_before_the_key(wreck, monkeypatch)
    before = key_files(wreck), log_ends(wreck.directory.path)
    plan = wreck.salvage("--index", wreck.index, "--plan")
    assert (plan["done"], plan["in_effect"], plan["decisions"], plan["root"]) == (False, True, 12, wreck.root)
    assert (key_files(wreck), log_ends(wreck.directory.path)) == before
    assert wreck.salvage("--index", wreck.index, "--yes")["resumed"]


@pytest.mark.parametrize("placed", [False, True])
def test_a_resumed_salvage_takes_the_sources_of_this_run(wreck: Wreck, placed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `done` of a killed run is in effect, and the next run gets an index with more decisions: they are put back too.

    `placed`: the key was in place before the kill, and only the files of the command were left.
    """
    first = wreck.receipts([0])
    adopt = keys.adopt

    def adopt_and_die(*given: Any, **how: Any) -> None:
        adopt(*given, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keys, "adopt", adopt_and_die if placed else die)
        wreck.salvage("--receipts", first, "--yes", code=2)
    plan = wreck.salvage("--index", wreck.index, "--plan")
    assert (plan.get("kept"), plan["end"]) == (7, 12)
    done = wreck.salvage("--index", wreck.index, "--yes")
    assert (done["resumed"], done["decisions"], done["root"]) == (False, 12, wreck.root)


def test_a_resumed_salvage_refuses_a_source_that_contradicts_it(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `done` of a killed run declared positions lost. An index that has them comes too late, and the command says so."""
    die_before_the_key(wreck, monkeypatch, "--receipts", wreck.receipts([2]))
    refused = wreck.salvage("--index", wreck.index, "--yes", code=1)
    assert (refused["position"], refused["began"]) == (6, True)
    assert wreck.salvage("--yes")["resumed"]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_machine_that_missed_a_rotation(intact: Wreck, sealed: bool) -> None:
    """A machine with a former key, which cannot endorse what follows the key in force, is refused before the salvage's key is appended.

    A rotation after an entry without content takes effect only once that entry is sealed.
    """
    former = key_files(intact)
    assert cli.main(["key", "rotate", "--config", str(intact.directory.config)]) == 0
    present = key_files(intact)
    if sealed:
        intact.cut([partition for partition in intact.ends if partition != ORDERING])
    put(intact, former)
    before = log_ends(intact.directory.path)[ORDERING]
    for flag in ("--yes", "--plan"):
        assert "this machine missed a rotation" in intact.salvage("--index", intact.index, flag, code=2)["stderr"]
    assert log_ends(intact.directory.path)[ORDERING] == before
    put(intact, present)
    assert intact.salvage("--index", intact.index, "--yes")["done"] == sealed
    assert len(known_keys(intact)) == 2 + sealed


def test_a_key_that_does_not_end_its_history(wreck: Wreck) -> None:
    """The salvage's key could not be placed behind it, so nothing is appended."""
    former = key_files(wreck)["notary-key.pem"]
    assert cli.main(["key", "rotate", "--config", str(wreck.directory.config)]) == 0
    put(wreck, {"notary-key.pem": former})
    assert "notary-keys.json" in wreck.refused("--index", wreck.index, "--yes")


def test_a_rotation_that_is_not_in_place(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key in force is only prepared here, since `key rotate` was killed: the command completes the rotation first."""
    with monkeypatch.context() as patch:
        patch.setattr(keys, "put_in_place", die)
        assert cli.main(["key", "rotate", "--config", str(intact.directory.config)]) == 2
    intact.cut([partition for partition in intact.ends if partition != ORDERING])
    assert intact.salvage("--index", intact.index, "--yes")["done"]
    assert len(known_keys(intact)) == 3


def test_a_log_that_lost_a_rotation(intact: Wreck) -> None:
    """The log lost the record of a rotation: the key here is later than the key in force, and endorses the salvage's."""
    assert cli.main(["key", "rotate", "--config", str(intact.directory.config)]) == 0
    before = known_keys(intact)
    intact.cut()
    assert intact.salvage("--index", intact.index, "--yes")["done"]
    assert known_keys(intact)[:-1] == before


def decide_once(directory: NotaryDirectory, bank: Bank, request: RequestObject | None = None) -> dict[str, Any]:
    """Have a worker with the index `fresh` decide one transaction. Returns the decision with its receipt."""
    with serving(directory.config, "fresh") as client:
        return decide(client, bank, request or spend())[0]


def lose_a_rotation(
    wreck: Wreck, bank: Bank, request: RequestObject | None = None, *, with_content: bool = False
) -> tuple[Path, str, dict[str, Any]]:
    """Rotate to a prepared key, decide, and lose all of that. The machine has the prepared files again, not in place.

    `with_content`: the log also loses the content of the last entry before it. Returns the index that has all, the new key, and a decision
    with a receipt of that key.
    """
    directory = wreck.directory
    before = log_ends(directory.path)
    if with_content:
        decide_once(directory, bank)
    after = log_ends(directory.path)
    assert cli.main(["key", "prepare", "--config", str(directory.config)]) == 0
    files = [directory.path / f"{name}{suffix}" for name in key_files(wreck) for suffix in ("", keys.NEXT)]
    prepared = {file: file.read_bytes() for file in files}
    assert cli.main(["key", "rotate", "--config", str(directory.config)]) == 0
    answer = decide_once(directory, bank, request)
    new = known_keys(wreck)[-1]
    wreck.ends = {partition: after[partition] if partition == ORDERING else before[partition] for partition in after}
    wreck.cut()
    for file, content in prepared.items():
        file.touch(0o600)
        file.write_bytes(content)
    return directory.path / "index" / "fresh", new, answer


@pytest.mark.parametrize("by", ["index", "receipts"])
def test_a_lost_rotation_whose_key_is_prepared(intact: Wreck, bank: Bank, by: str) -> None:
    """The log lost a rotation, and a source shows it. The command puts the prepared key in place, so its receipts stay good."""
    request = spend()
    index, new, answer = lose_a_rotation(intact, bank, request)
    receipts = intact.directory.path / "receipts.json"
    receipts.write_text(json.dumps([answer, request]))
    source = [f"--{by}", index if by == "index" else receipts]
    assert intact.salvage(*source, "--plan")["keys_missing"] == []
    assert intact.salvage(*source, "--yes")["done"]
    assert known_keys(intact)[-2] == new
    decision, receipt = decision_and_receipt(answer)
    assert receipt is not None
    verify_receipt(receipt, decision, keys.verifier_keys(load(intact.directory.config).key_files).every)


def test_a_lost_rotation_behind_a_hole(wreck: Wreck, bank: Bank) -> None:
    """The same in a log with an earlier salvage, whose last entry has no content: no other command can complete the rotation there."""
    assert wreck.salvage("--index", wreck.index, "--yes")["done"]
    index, new, _ = lose_a_rotation(wreck, bank, with_content=True)
    shutil.rmtree(wreck.directory.path / "salvage")
    assert wreck.salvage("--index", index, "--yes")["done"]
    assert known_keys(wreck)[-2] == new


def test_a_lost_rotation_whose_key_is_elsewhere(intact: Wreck, bank: Bank) -> None:
    """The plan names a key that this machine lacks. It does not prevent the salvage: perhaps no machine has it any more.

    A receipt of that key is no wrong source, so the error names the remedy first.
    """
    index, new, answer = lose_a_rotation(intact, bank)
    for name in key_files(intact):
        (intact.directory.path / f"{name}{keys.NEXT}").unlink()
    receipts = intact.directory.path / "receipts.jsonl"
    receipts.write_text(json.dumps(answer))
    refused = intact.refused("--receipts", receipts, "--plan")
    assert "unknown-key" in refused
    assert "copy key and key history from a machine that has that key" in refused
    assert intact.salvage("--index", index, "--receipts", receipts, "--plan")["receipts"][str(receipts)]["receipts"] == 1
    assert intact.salvage("--index", index, "--plan")["keys_missing"] == [new]
    assert intact.salvage("--index", index, "--yes")["done"]


def test_receipts_from_before_a_lost_key(wreck: Wreck) -> None:
    """A lost key has endorsed no other, so the key history begins anew. The log has the owner's word for the keys before."""
    (wreck.directory.path / "notary-key.pem").rename(wreck.directory.path / "former.pem")
    assert cli.main(["key", "rotate", "--lost", "--config", str(wreck.directory.config)]) == 0
    plan = wreck.salvage("--receipts", wreck.receipts([2, 4]), "--plan")
    assert (plan["decisions_put_back"], plan["keys_missing"]) == (2, [])


def lose_key(wreck: Wreck, *names: str) -> None:
    """Lose the end of the payload topic, and these files: a worker died before the content of its entry was in the log."""
    wreck.cut([partition for partition in wreck.ends if partition != ORDERING])
    for name in names:
        (wreck.directory.path / name).unlink()


@pytest.mark.parametrize("names", [["notary-key.pem"], ["notary-key.pem", "notary-keys.json"]])
def test_the_key_and_a_content_are_lost(intact: Wreck, bank: Bank, names: list[str]) -> None:
    """Only a worker with the lost key could fill the hole. `--lost` seals it, and the salvage's key begins a new history."""
    root = intact.root
    lose_key(intact, *names)
    assert names[-1] in intact.refused("--index", intact.index, "--yes")
    assert intact.salvage("--index", intact.index, "--lost", "--plan")["decisions_put_back"] == 6
    assert "nothing will endorse the new key" in intact.plan("--index", intact.index, "--lost")
    done = intact.salvage("--index", intact.index, "--lost", "--yes")
    assert (done["decisions"], done["root"], done["endorsed"], known_keys(intact)) == (12, root, False, [done["verifier_key"]])
    with intact.serving() as client:
        intact.check(client, range(6))
        client.decide(bank, spend())
    assert intact.salvage("--index", intact.index, "--yes")["done"] is False


@pytest.mark.parametrize(
    ("names", "why"),
    [("notary-key.pem", "is there cannot be seen"), ("not-mounted/key.pem", "is a link to nothing")],
    ids=["closed", "away"],
)
def test_a_key_that_cannot_be_read_is_not_lost(intact: Wreck, names: str, why: str) -> None:
    """It may be there, in a folder that is closed to this user or not mounted: nothing is appended, and no key replaces it."""
    lose_key(intact, "notary-key.pem")
    key = intact.directory.path / "notary-key.pem"
    key.symlink_to(intact.directory.path / names)
    before = log_ends(intact.directory.path)
    assert why in intact.refused("--index", intact.index, "--lost", "--yes")
    assert cli.main(["key", "rotate", "--lost", "--config", str(intact.directory.config)]) == 2
    assert log_ends(intact.directory.path) == before


def test_a_key_in_a_folder_that_is_not_mounted_is_not_lost(intact: Wreck) -> None:
    """The folder may be a link to a volume. Nothing is appended while the new key could not be placed there either."""
    lose_key(intact, "notary-key.pem")
    config = intact.directory.config
    config.write_text(config.read_text().replace('"notary-key.pem"', '"secrets/notary-key.pem"'))
    (intact.directory.path / "secrets").symlink_to("not-mounted")
    assert "cannot read the folder" in intact.refused("--index", intact.index, "--lost", "--yes")


@pytest.mark.parametrize("step", ["adopt", "create_file", "end_anew", "move_into_place", "present_history"])
def test_a_kill_while_a_lost_key_is_replaced(intact: Wreck, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command completes it, wherever it was killed."""
    root = intact.root
    lose_key(intact, "notary-key.pem", "notary-keys.json")
    place = salvage.SalvageCommand._place_key

    async def placing(*arguments: Any) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(keys, step, die)
            return await place(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(salvage.SalvageCommand, "_place_key", placing)
        intact.salvage("--index", intact.index, "--lost", "--yes", code=2)
    done = intact.salvage("--index", intact.index, "--lost", "--yes")
    assert (done["done"], done["resumed"], done["root"], known_keys(intact)) == (True, True, root, [done["verifier_key"]])
    assert intact.salvage("--index", intact.index, "--yes")["done"] is False


def test_a_lost_key_alone_is_no_reason_for_a_salvage(intact: Wreck) -> None:
    """The command exits with 0 without a new key, so it names the one that makes it."""
    (intact.directory.path / "notary-key.pem").unlink()
    assert "No key was made: run `notary key rotate --lost`" in intact.plan("--lost")


def test_a_resumed_salvage_asks_for_the_lost_key_again(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run lacks `--lost`. It names that flag, not the command that would make the keys of another notary."""
    lose_key(intact, "notary-key.pem")
    die_before_the_key(intact, monkeypatch, "--index", intact.index, "--lost")
    refused = intact.refused("--index", intact.index, "--yes")
    assert "If it is lost everywhere, give --lost" in refused
    assert "notary init" not in refused
    assert intact.salvage("--index", intact.index, "--lost", "--yes")["resumed"]


def test_a_lost_key_was_replaced_behind_a_hole(intact: Wreck) -> None:
    """`key rotate --lost` has appended its record behind the hole, where no worker gets. Its key endorses the salvage's."""
    lose_key(intact, "notary-key.pem")
    assert cli.main(["key", "rotate", "--lost", "--config", str(intact.directory.config)]) == 0
    (rotated,) = known_keys(intact)
    assert "give --lost here" in intact.refused("--index", intact.index, "--yes")
    done = intact.salvage("--index", intact.index, "--lost", "--yes")
    assert (done["endorsed"], known_keys(intact)) == (True, [rotated, done["verifier_key"]])


def test_a_rotation_behind_a_hole_whose_key_is_not_lost(intact: Wreck) -> None:
    """It took place on another machine, and no worker has read its record. So `--lost` was meant for the key before."""
    lose_key(intact)
    former = known_keys(intact)
    assert cli.main(["key", "rotate", "--config", str(intact.directory.config)]) == 0
    key, elsewhere, rotated = intact.directory.path / "notary-key.pem", intact.directory.path / "elsewhere", known_keys(intact)
    key.rename(elsewhere)
    assert f"is {rotated[-1]} now" in intact.salvage("--index", intact.index, "--lost", "--yes", code=2)["stderr"]
    elsewhere.rename(key)
    assert intact.salvage("--index", intact.index, "--yes")["endorsed"]
    assert known_keys(intact)[:2] == [*former, rotated[-1]]


def test_a_key_of_this_command_behind_a_hole(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run was killed behind its `key` record, and a second loss takes the seal before it. No other machine has that key."""
    lose_key(intact, "notary-key.pem")
    die_before_begin(intact, monkeypatch, "--lost")
    intact.cut([partition for partition in intact.ends if partition != ORDERING])
    shutil.rmtree(intact.directory.path / "salvage" / "index")
    done = intact.salvage("--index", intact.index, "--lost", "--yes")
    assert (done["seals"], done["decisions"], known_keys(intact)) == (True, 12, [done["verifier_key"]])


def test_a_former_key_does_not_replace_a_lost_one(wreck: Wreck) -> None:
    """This machine missed a rotation, so its key must not endorse the salvage's. Without it, the history begins anew."""
    former = key_files(wreck)
    assert cli.main(["key", "rotate", "--config", str(wreck.directory.config)]) == 0
    put(wreck, former)
    assert "this machine missed a rotation" in wreck.refused("--index", wreck.index, "--lost", "--yes")
    (wreck.directory.path / "notary-key.pem").unlink()
    assert wreck.salvage("--index", wreck.index, "--lost", "--yes")["endorsed"] is False


def test_a_prepared_key_survives_a_lost_one(intact: Wreck) -> None:
    """The lost key has endorsed a prepared one, so clients follow to the salvage's key: the command says which files to move."""
    lose_key(intact)
    (present,) = known_keys(intact)
    assert cli.main(["key", "prepare", "--config", str(intact.directory.config)]) == 0
    (intact.directory.path / "notary-key.pem").unlink()
    refused = intact.refused("--index", intact.index, "--lost", "--yes")
    moves = re.findall(r"(?:move it|and (\S+)) to (\S+),", refused)
    assert len(moves) == 2, refused
    for _, target in moves:
        keys.next_of(Path(target)).rename(target)
    assert intact.salvage("--index", intact.index, "--yes")["endorsed"]
    assert (known_keys(intact)[0], len(known_keys(intact))) == (present, 3)


def test_a_key_survives_that_was_not_in_place_yet(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """`key rotate --lost` was killed when its history was in place, and its key was not. Clients follow from the lost key to that one."""
    lose_key(intact)
    (present,) = known_keys(intact)
    config, key = str(intact.directory.config), intact.directory.path / "notary-key.pem"
    assert cli.main(["key", "prepare", "--config", config]) == 0
    key.unlink()

    def move_or_die(file: Path, place: Path) -> None:
        if place == key:
            die()
        move_into_place(file, place)

    with monkeypatch.context() as patch:
        patch.setattr(keys, "move_into_place", move_or_die)
        assert cli.main(["key", "rotate", "--lost", "--config", config]) == 2
    refused = intact.refused("--index", intact.index, "--lost", "--yes")
    assert f"move it to {key}, and run the same command without --lost" in refused
    keys.next_of(key).rename(key)
    assert intact.salvage("--index", intact.index, "--yes")["endorsed"]
    assert (known_keys(intact)[0], len(known_keys(intact))) == (present, 3)


def test_a_prepared_key_survives_a_lost_rotation_and_a_lost_key(intact: Wreck) -> None:
    """The log lost the record of the lost key too. A key that this one had endorsed still continues the history that clients follow."""
    assert cli.main(["key", "rotate", "--config", str(intact.directory.config)]) == 0
    intact.cut()
    assert cli.main(["key", "prepare", "--config", str(intact.directory.config)]) == 0
    (intact.directory.path / "notary-key.pem").unlink()
    refused = intact.refused("--index", intact.index, "--lost", "--yes")
    assert "notary-key.pem.next, which is not lost" in refused
    before = known_keys(intact)
    assert cli.main(["key", "rotate", "--lost", "--config", str(intact.directory.config)]) == 0
    assert (known_keys(intact)[:-1], len(before)) == (before, 2), "it continues the history too"


def test_a_second_disaster_after_an_interrupted_salvage(wreck: Wreck, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A salvage was killed behind its `key` record, and completed with another key. The log loses that part, and an index has both."""
    die_before_begin(wreck, monkeypatch)
    assert wreck.salvage("--index", wreck.index, "--yes")["done"]
    decide_once(wreck.directory, bank)
    wreck.cut()
    shutil.rmtree(wreck.directory.path / "salvage")
    index = wreck.directory.path / "index" / "fresh"
    assert len(wreck.salvage("--index", index, "--plan")["keys_missing"]) == 1
    assert wreck.salvage("--index", index, "--yes")["decisions"] == 13


def test_records_that_contradict_the_sources_come_during_an_attempt(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is unknown then, since a key that no worker has is in force. Later refusals report that too."""
    chosen, calls = salvage.SalvageCommand._chosen, 0

    def refuse(command: salvage.SalvageCommand, job: salvage.SalvageJob) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise ChoiceRefused(6, "two leaves", ["the log"], [str(wreck.index)])
        return chosen(command, job)

    monkeypatch.setattr(salvage.SalvageCommand, "_chosen", refuse)
    assert "A key that no worker has is in force" in wreck.salvage("--index", wreck.index, "--yes", code=2)["stderr"]
    assert wreck.salvage("--index", wreck.index, "--yes", code=1)["began"]
    monkeypatch.undo()
    assert wreck.salvage("--index", wreck.index, "--yes")["done"]


def test_a_lost_work_folder(wreck: Wreck, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key in force was only in --work, and that folder is lost: an error says so, and its remedy lets workers write again."""
    die_before_the_key(wreck, monkeypatch)
    shutil.rmtree(wreck.directory.path / "salvage")
    for flags in (["--plan"], ["--yes"]):
        refused = wreck.refused("--index", wreck.index, *flags)
        assert "name the folder that has it with --work" in refused
        assert "notary key rotate --lost" in refused
    (wreck.directory.path / "notary-key.pem").rename(wreck.directory.path / "former.pem")
    assert cli.main(["key", "rotate", "--lost", "--config", str(wreck.directory.config)]) == 0
    assert wreck.salvage("--index", wreck.index, "--yes")["done"] is False
    with wreck.serving() as client:
        wreck.check(client, range(6))
        client.decide(bank, spend())


def test_a_failed_comparison_is_repeated(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that is read back has other consumed states: each later run compares again, and puts no key in place."""
    before = key_files(wreck)
    with monkeypatch.context() as patch:
        patch.setattr("notary.salvage.goal.sha256", hashlib.sha512)
        for _ in range(2):
            assert "Start no worker" in wreck.salvage("--index", wreck.index, "--yes", code=2)["stderr"]
        assert key_files(wreck) == before
    assert wreck.salvage("--index", wreck.index, "--yes")["resumed"]


def test_a_damaged_goal_is_named(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of an interrupted attempt is damaged: the command names it, and without it makes another attempt with another key."""
    die_before_the_key(wreck, monkeypatch)
    goal = wreck.directory.path / "salvage" / "goal"
    goal.write_bytes(b"12 xyz\n\xff")
    assert f"{goal} is damaged" in wreck.refused("--index", wreck.index, "--yes")
    goal.unlink()
    again = wreck.salvage("--index", wreck.index, "--yes")
    assert (again["resumed"], again["root"]) == (False, wreck.root)


def test_a_kill_while_a_key_is_written(wreck: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before the key of an attempt has its name leaves no file of that name, and the next run goes on."""

    link = os.link

    def die(source: Path, target: Path, **given: Any) -> None:
        if target.name == "key-0.pem":
            raise KeyboardInterrupt
        link(source, target, **given)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", die)
        wreck.salvage("--index", wreck.index, "--yes", code=2)
    assert not (wreck.directory.path / "salvage" / "key-0.pem").exists()
    assert wreck.salvage("--index", wreck.index, "--yes")["root"] == wreck.root


def test_a_key_file_that_is_gone(wreck: Wreck) -> None:
    """An attempt takes the number after the largest, so a missing file of an earlier attempt is no obstacle."""
    (wreck.directory.path / "salvage").mkdir()
    keys.create(wreck.directory.path / "salvage" / "key-1.pem")
    assert wreck.salvage("--index", wreck.index, "--yes")["done"]


def test_receipts_are_counted_by_source(wreck: Wreck, tmp_path: Path) -> None:
    """The plan has the number of receipts and requests of each named folder or file."""
    folder = wreck.receipts([2, 4])
    alone = tmp_path / ".requests.json"
    (folder / "requests.json").rename(alone)
    plan = wreck.salvage("--receipts", folder, "--receipts", alone, "--plan")
    assert plan["decisions_put_back"] == 2
    assert plan["receipts"] == {str(folder): {"receipts": 2, "requests": 0}, str(alone): {"receipts": 0, "requests": 2}}


def test_a_hash_is_final(wreck: Wreck) -> None:
    """A position that an earlier salvage put back as a hash gets no decision later; a worker answers 404 for it."""
    done = wreck.salvage("--receipts", wreck.receipts([3]), "--yes")
    assert (done["hashes"], done["lost"]) == ([[8, 8]], [[6, 7]])
    refused = wreck.salvage("--receipts", wreck.receipts([2]), "--yes", code=1)
    assert (refused["position"], "which is final" in refused["refused"]) == (8, True)
    with wreck.serving() as client:
        wreck.check(client, [3])
        assert client.get(f"/v1/transactions/{wreck.decisions[2]['transaction_id']}").status_code == 404
    assert wreck.salvage("--index", wreck.directory.path / "index" / "fresh", "--plan")["done"] is False, "that index has the hash too"


@pytest.mark.parametrize(
    ("place", "what", "why"),
    [
        (3, "a decision", "its decision at position 9 is not the leaf of its tree"),
        (2, "a state", "the item at position 8 is a rejection and consumes 1 states"),
        (3, "no decision", "it has no decision of the transaction at position 9"),
        (3, "no position", "it has no position 9"),
        (5, "no position", "its positions end at 11, and its tree at 12"),
    ],
)
def test_an_index_with_a_wrong_row(wreck: Wreck, place: int, what: str, why: str) -> None:
    """An index is no source if a decision is missing or not the leaf of its tree, or if no record can hold an item of it."""
    id_, position = bytes.fromhex(wreck.decisions[place]["transaction_id"]), wreck.decisions[place]["position"]
    row: tuple[str, bytes, bytes | None] = {
        "a decision": ("decisions", id_, bytes(17)),
        "a state": ("states", bytes(36), rows.state_row(id_, position)),
        "no decision": ("decisions", id_, None),
        "no position": ("positions", rows.U64.pack(position), None),
    }[what]
    with opened(wreck.index) as index:
        put_row(index, *row)
    assert why in wreck.refused("--index", wreck.index, "--plan")


def test_an_index_that_cannot_be_opened_now_is_not_left_out(wreck: Wreck) -> None:
    """A sound index with more files than this process may open may have the only copy of decisions."""

    def opened() -> None:
        with pytest.raises(SourceRefused, match="is of another log"), indexes.open_indexes([wreck.index], b"", lambda *_: None):
            pass

    others = [str(problem) for problem in errors_with_few_open_files(opened, OSError, ConfigurationError, Fatal)]
    assert others
    assert [problem for problem in others if "open files" not in problem or "eave it out" in problem] == []


def test_a_plan_names_suspected_sources(wreck: Wreck) -> None:
    """No other root or view may show which source is right once the salvage is done: the plan names them."""
    with opened(wreck.index) as index:
        put_row(index, "meta", rows.AGREEMENT_KEY, encode(Agreement(in_disagreement=True)))
    write(wreck.directory.path, [register("worker-2", 9)])  # its view is of another history
    suspected = {THE_LOG: "worker-2 saw another history", str(wreck.index): "its root differs from another worker's"}
    assert wreck.salvage("--index", wreck.index, "--plan")["suspected"] == suspected
    plan = wreck.plan("--index", wreck.index)
    assert all(f"suspected      {who}: {why}" in plan for who, why in suspected.items())


def test_a_plan_names_receipts_of_a_replaced_key(wreck: Wreck, bank: Bank) -> None:
    """A thief of a replaced key can sign receipts beyond the log's end: the plan names the key, since a true receipt contradicts them."""
    former, before = known_keys(wreck)[-1], log_ends(wreck.directory.path)
    assert cli.main(["key", "rotate", "--config", str(wreck.directory.config)]) == 0
    true = decide_once(wreck.directory, bank)
    fresh = wreck.directory.path / "index" / "fresh"
    wreck.ends = {partition: end + (partition == ORDERING) for partition, end in before.items()}
    wreck.cut()
    receipts = wreck.receipts([0, 1])
    assert true["position"] == wreck.decisions[0]["position"] == 6
    ((name, why),) = wreck.salvage("--receipts", receipts, "--plan")["suspected"].items()
    assert name == f"{receipts / 'decisions.jsonl'}:1"
    assert why.startswith(f"{former} signed it and 1 more beyond the log's end, and the log replaced that key")
    assert f"suspected      {name}: {why}" in wreck.plan("--receipts", receipts)
    assert wreck.salvage("--index", fresh, "--plan")["suspected"] == {}
    refused = wreck.salvage("--index", fresh, "--receipts", receipts, "--plan", code=1)
    assert refused["position"] == 6, "an index shows which one is false"


def test_freed_contents_need_a_snapshot(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log cannot be replayed from its start, and the error names the command that makes an index to begin at."""
    offsets = EmbeddedLog.offsets
    partition = next(each for each, end in intact.ends.items() if each != ORDERING and end)

    async def freed(self: EmbeddedLog) -> Mapping[int, LogOffsets]:
        return {at: LogOffsets(int(at == partition), found.log_end) for at, found in (await offsets(self)).items()}

    directory = intact.directory
    copies = {"NOTARY_SNAPSHOTS_URL": str(directory.path / "copies")}
    config = ["--config", str(directory.config)]
    for name, value in copies.items():
        monkeypatch.setenv(name, value)
    shutil.copytree(intact.index, directory.path / "index" / "w1")
    assert cli.main(["snapshot", "create", "--name", "w1", *config]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedLog, "offsets", freed)
        refused = intact.refused("--plan")
        found = re.search(r"Remove (\S+), restore .*`NOTARY_INDEX_DIRECTORY=(\S+) notary (snapshot restore --name index)`", refused)
        assert found is not None, refused
        shutil.rmtree(found[1])
        patch.setenv("NOTARY_INDEX_DIRECTORY", found[2])
        assert cli.main([*found[3].split(), *config]) == 0
        patch.delenv("NOTARY_INDEX_DIRECTORY")
        assert intact.salvage("--plan")["kept"] == 12


class Mirror:
    """A wreck whose log takes the place of a mirror in Kafka, so that `notary failover` runs without brokers."""

    def __init__(self, wreck: Wreck, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.wreck, self.has_append_times = wreck, False
        self._command = Command(capsys, "failover", "--to", "mirror-1:9092", config=wreck.directory.config)
        config = load(wreck.directory.config)

        async def uses_append_times(*_: object) -> bool:
            return self.has_append_times

        monkeypatch.setattr(failover, "source_and_target", lambda arguments: (config, config))
        monkeypatch.setattr(failover, "uses_append_times", uses_append_times)
        monkeypatch.setattr(failover, "use_append_times", self.use_append_times)
        monkeypatch.setattr(failover, "QUIET_S", 0.0)

    async def use_append_times(self, *_: object) -> None:
        """No worker has the failover's key before that."""
        assert (self.wreck.directory.path / "failover" / "key-0.pem").exists()
        self.has_append_times = True

    def failover(self, *arguments: object, code: int = 0) -> str:
        """Run the command, which should exit with that code. Returns what it printed, and its complaints."""
        return self._command.run(*arguments, code=code) + self._command.err


@pytest.fixture
def mirror(wreck: Wreck, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mirror:
    """A mirror that has the first of two rounds of decisions."""
    return Mirror(wreck, monkeypatch, capsys)


def test_a_failover_names_the_answers_that_stand(mirror: Mirror) -> None:
    """They are those that the mirror has, and those of the sources. It is made even if nothing is put back."""
    stand, put_back = "for positions up to 5 stand", "for those that are put back too"
    plan = mirror.failover("--plan")
    assert stand in plan
    assert put_back not in plan
    assert "All others from position 6 on" in plan
    assert "nothing was appended" in plan
    plan = mirror.failover("--plan", "--index", mirror.wreck.index)
    assert plan.index(stand) < plan.index(put_back)
    assert "[log] bootstrap = " in mirror.failover("--yes")
    assert mirror.has_append_times
    assert len(known_keys(mirror.wreck)) == 2
    assert "are no mirror: they have the brokers' append times" in mirror.failover("--yes", code=2)


def test_a_failover_to_a_mirror_without_decisions_names_what_is_put_back(mirror: Mirror) -> None:
    """No answer stands but those of the sources."""
    mirror.wreck.ends = {partition: int(partition == ORDERING) for partition in mirror.wreck.ends}
    mirror.wreck.cut()
    assert re.search("^answers +none stands\n +All others from position 0 on", mirror.failover("--plan"), re.M)
    plan = mirror.failover("--plan", "--index", mirror.wreck.index)
    assert re.search("^answers +for those that are put back stand, with their receipts\n +All others from position 0 on", plan, re.M)


def test_a_failover_killed_before_the_append_times_is_completed(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run finds its own key in force, also if the topics have the brokers' append times already."""
    for step in ((failover, "use_append_times"), (keys, "adopt")):
        with monkeypatch.context() as patch:
            patch.setattr(*step, die)
            mirror.failover("--yes", code=2)
        assert mirror.has_append_times == (step[0] is keys)
        assert len(known_keys(mirror.wreck)) == 1
    assert "completed      a salvage that took effect in an earlier run" in mirror.failover("--yes")
    assert len(known_keys(mirror.wreck)) == 2


def test_a_mirror_that_is_no_prefix_is_refused(mirror: Mirror) -> None:
    """A record in it has another history, and the records are named that are known to be unchanged."""
    write(mirror.wreck.directory.path, [register("worker-2", 9)])
    refused = mirror.failover("--yes", code=2)
    assert "no prefix of the log: 'worker-2' saw another history" in refused
    assert re.search(r"Only the ordering records up to [1-9]\d* are known", refused)


def test_a_partition_without_a_leader_has_lost_nothing(intact: Wreck, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is complete. No plan may seal an entry while a broker is away.

    `offsets` leaves out such a partition (ordering/kafka.py), and readers get none of its records.
    """
    partition = next(each for each, end in intact.ends.items() if each != ORDERING and end)
    offsets, open_reader = EmbeddedLog.offsets, EmbeddedLog.open_reader

    async def led(self: EmbeddedLog) -> Mapping[int, LogOffsets]:
        return {each: found for each, found in (await offsets(self)).items() if each != partition}

    async def opened(self: EmbeddedLog, offsets_next: Mapping[int, int]) -> Any:
        reader = await open_reader(self, offsets_next)
        pause = reader.pause
        reader.pause = lambda partitions: pause({*partitions, partition})  # type: ignore[method-assign]
        reader.pause(())
        return reader

    monkeypatch.setattr(EmbeddedLog, "offsets", led)
    monkeypatch.setattr(EmbeddedLog, "open_reader", opened)
    assert "has no leader" in intact.refused("--plan")


@pytest.mark.parametrize(("partitions", "named"), [((0, 1, 2, 3), r"positions 6 to (at most )?11"), ((0,), r"batch \(2, 2\)")])
def test_a_plan_names_what_is_given_up_behind_a_seal(intact: Wreck, partitions: Sequence[int], named: str) -> None:
    """The payload topic lost its end: no source has the six decisions that were answered behind it.

    If one partition did, the entries behind the sealed one are given up too, although the log has their contents.
    """
    intact.cut(partitions)
    assert re.search(named, intact.plan())


def test_no_activation_is_recommended_behind_a_lost_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would have no effect there, and the command would ask for it again and again."""
    directory = NotaryDirectory.create(tmp_path / "notary", options=["--format-version", "1"])
    write(directory.path, [register("worker-1", 1), entry(1, 1, b"lost")])
    refused = Command(capsys, "salvage", "--yes", config=directory.config).refuses()
    assert "notary activate" not in refused
    assert "restore" in refused


def test_a_new_log_that_lost_a_content_is_salvaged(tmp_path: Path, bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    """`notary init` has activated format version 2. Behind the lost content no record of the owner could do that any more."""
    directory = NotaryDirectory.create(tmp_path / "notary")
    directory.register(bank)
    with serving(directory.config) as client:
        for _ in range(3):
            client.decide(bank, spend())
    ends = log_ends(directory.path)
    last = max([partition for partition, end in ends.items() if end])
    store, _ = open_store(directory.path / "log")
    store.delete(KEY.pack(last + 1, ends[last] - 1))
    store.close()
    command = Command(capsys, "salvage", "--index", directory.path / "index" / "worker-1", "--yes", config=directory.config)
    assert command.json()["decisions"] == 3
