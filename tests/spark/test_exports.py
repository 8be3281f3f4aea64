"""Tests exported indexes against the log: a real worker's are clean, and of a changed one exactly the changes are reported."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from pyspark.sql import SparkSession

from notary.config import load
from ordering.log import Record
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.exports import read_exports
from spark_join.log.archive import read_archive
from spark_join.order.join import join
from spark_join.state import start
from spark_join.verify import Verified, verify
from spark_join.violations import LOG
from tests.kafka.reading_back import read_log_records
from tests.notary.http.checked_client import JSON, CheckedClient
from tests.notary.party import Bank, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess
from tests.spark.archived import archive
from tests.spark.conftest import verify_log
from tests.spark.exported import Rows, edited, exported, octets

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

X, Y, Z, U, V = (fresh_state() for _ in range(5))
ASKED = [
    spend(X, Y),
    spend(X, fresh_state(), Y),  # 1: input-conflict
    spend(Z),
    spend(U, references=[X, Z]),  # 3: reference-conflict
    spend(references=[fresh_state()]),
    spend(V, time_window={"from": None, "until": 5}),  # 5: outside-time-window
    spend(V, time_window={"from": 5, "until": None}),
    spend(U),
    spend(U),  # 8: input-conflict
]
IDS = [transaction_id(request) for request in ASKED]
"""The ids by position."""
NOBODYS = "ab" * 32


class Left(NamedTuple):
    """The log of a worker, and two exports of its index from its lifetime."""

    by_partition: dict[int, list[Record]]
    party: Bank
    early: Path
    late: Path


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The log and exports of a worker that decided `ASKED`, and other requests while it was exported twice."""
    folder, bank = tmp_path_factory.mktemp("exports"), Bank()
    directory = NotaryDirectory.create(folder / "notary")
    directory.register(bank)
    stop, rounds = threading.Event(), threading.Semaphore(0)

    def ask(checked: CheckedClient, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        answer = checked.http.post("/v1/submissions?receipts=false", content=bank.body(*requests), headers=JSON)
        assert answer.status_code == 200, answer.text
        decisions: list[dict[str, Any]] = answer.json()["decisions"]
        return decisions

    with NotaryProcess.start(
        directory.config, settings={"INDEX_WRITE_BUFFER_BYTES": 64 << 10, "WORKER_CHECKPOINT_INTERVAL_MS": 200}
    ) as worker:
        with CheckedClient(worker.url) as checked:
            reasons = [decision["reason"] for decision in ask(checked, *ASKED)]
            assert reasons == [
                None,
                "input-conflict",
                None,
                "reference-conflict",
                None,
                "outside-time-window",
                None,
                None,
                "input-conflict",
            ]

            def go_on() -> None:
                while not stop.is_set():
                    ask(checked, *(spend() for _ in range(50)))
                    rounds.release()

            client = threading.Thread(target=go_on)
            client.start()
            try:
                for name in ("early", "late"):
                    for _ in range(10):
                        assert rounds.acquire(timeout=60)
                    exported(directory.path / "index" / worker.name, folder / name)
            finally:
                stop.set()
                client.join()
        assert worker.stop() == 0
    return Left(dict(asyncio.run(read_log_records(load(directory.config)))), bank, folder / "early", folder / "late")  # type: ignore[arg-type]


def _verified(spark: SparkSession, folder: Path, left: Left, *exports: Path) -> Verified:
    return verify_log(spark, folder, left.by_partition, {left.party.name: left.party.public_pem.decode()}, exports)


Planted = list[tuple[str, int | None, str | None]]
"""(type, position, id) of the violations that were planted in one export."""
Plant = Callable[[Path, Path], Planted]


def _decisions(change: Callable[[Rows], object], *expected: tuple[str, int, str]) -> Plant:
    def plant(export: Path, to: Path) -> Planted:
        edited(export, to, decisions=change)
        return list(expected)

    return plant


def _states(change: Callable[[Rows], object], *expected: tuple[str, int, str]) -> Plant:
    def plant(export: Path, to: Path) -> Planted:
        edited(export, to, states=change)
        return list(expected)

    return plant


def _set(at: int, **columns: object) -> Callable[[Rows], object]:
    return lambda rows: rows[at].update(columns)


def _row(rows: Rows, state: str) -> dict[str, Any]:
    (found,) = [row for row in rows if row["state"] == octets(state)]
    return found


def _without(state: str) -> Callable[[Rows], object]:
    return lambda rows: rows.remove(_row(rows, state))


def _consumed(state: str, position: int) -> Callable[[Rows], object]:
    """Returns a change: the state is consumed by the decision at that position."""

    def change(rows: Rows) -> None:
        rows[:] = [row for row in rows if row["state"] != octets(state)]
        rows.append({"state": octets(state), "id": bytes.fromhex(IDS[position]), "position": position})

    return change


def _rejected_though_committed(export: Path, to: Path) -> Planted:
    """Reject a committed transaction and remove its state, as a worker that decided so would."""
    edited(export, to, decisions=_set(2, outcome=3), states=_without(Z))
    return [("wrong-outcome", 2, IDS[2])]


def _committed_twice(export: Path, to: Path) -> Planted:
    """Commit a second transaction and give it the state, as a worker that decided so would."""
    edited(export, to, decisions=_set(8, outcome=0, conflicts=[]), states=_consumed(U, 8))
    return [("double-spend", 8, IDS[8])]


def _other_id_and_its_states(export: Path, to: Path) -> Planted:
    """Change an id, also in its state, as a worker that read another id would."""
    nobody = bytes.fromhex(NOBODYS)
    edited(export, to, decisions=_set(2, id=nobody), states=lambda rows: _row(rows, Z).update(id=nobody))
    return [("index-mismatch", 2, IDS[2])]


def _swapped_and_their_states(export: Path, to: Path) -> Planted:
    """Swap two positions, also in their states, as a worker that took them in another order would."""

    def decisions(rows: Rows) -> None:
        rows[2].update(position=7), rows[7].update(position=2)

    def states(rows: Rows) -> None:
        _row(rows, Z).update(position=7), _row(rows, U).update(position=2)

    edited(export, to, decisions=decisions, states=states)
    return [("index-mismatch", 2, IDS[2]), ("index-mismatch", 7, IDS[7])]


def _not_of_its_own(export: Path, to: Path) -> Planted:
    """Plant wrong decisions and unrelated states: a wrong decision must excuse only its own states, neither an extra nor a missing one."""

    def decisions(rows: Rows) -> None:
        rows[0].update(outcome=1)
        rows[6].update(position=3)
        rows[8].update(outcome=0, conflicts=[])

    def states(rows: Rows) -> None:
        _row(rows, Z).update(id=bytes.fromhex(IDS[0]), position=0)
        rows.remove(_row(rows, V))
        rows.remove(_row(rows, X))  # correctly removed: its transaction is rejected here
        rows.append({"state": bytes(36), "id": bytes.fromhex(IDS[8]), "position": 8})

    edited(export, to, decisions=decisions, states=states)
    return [
        ("wrong-outcome", 0, IDS[0]),
        ("index-mismatch", 2, IDS[2]),
        ("position-gap", 6, IDS[6]),
        ("index-mismatch", 6, IDS[6]),
        ("double-spend", 8, IDS[8]),
        ("index-mismatch", 8, IDS[8]),
    ]


def _other_root(export: Path, to: Path) -> Planted:
    size = json.loads((export / "manifest.json").read_text())["decisions"]
    edited(export, to, manifest=lambda said: said["tree"].update(root="00" * 32))
    return [("index-mismatch", size, None)]


def _other_log_time(export: Path, to: Path) -> Planted:
    """Claim another log time, on which the next time windows depend."""
    manifest = json.loads((export / "manifest.json").read_text())
    edited(export, to, manifest=lambda written: written.update(log_time_ms=written["log_time_ms"] + 1))
    return [("index-mismatch", manifest["decisions"], None)]


def _other_size(export: Path, to: Path) -> Planted:
    """Remove the last decision from an export that claims the same read position: only its size is reported."""

    def shorter(said: dict[str, Any]) -> None:
        said["decisions"] -= 1
        said["tree"]["size"] -= 1

    size = json.loads((export / "manifest.json").read_text())["decisions"]
    edited(
        export,
        to,
        decisions=lambda rows: rows.pop(),
        states=lambda rows: rows.remove(max(rows, key=lambda row: row["position"])),
        manifest=shorter,
    )
    return [("index-mismatch", size - 1, None)]


def _more_than_the_log(export: Path, to: Path) -> Planted:
    """Add decisions beyond those of the log up to the export's read position."""

    def longer(said: dict[str, Any]) -> None:
        said["decisions"] += 500
        said["tree"]["size"] += 500

    def more(rows: Rows) -> None:
        last = rows[-1]
        rows += [{**last, "position": last["position"] + 1 + n, "id": n.to_bytes(32, "big")} for n in range(500)]

    size = json.loads((export / "manifest.json").read_text())["decisions"]
    edited(export, to, decisions=more, manifest=longer)
    return [("index-mismatch", size + 500, None)]


def _many(export: Path, to: Path) -> Planted:
    """Plant one of each in one export."""

    def decisions(rows: Rows) -> None:
        rows[0].update(outcome=3)
        rows[1].update(conflicts=rows[1]["conflicts"][:1])
        rows[3].update(outcome=1)
        rows[6].update(log_time_ms=rows[6]["log_time_ms"] + 1)
        rows[8].update(outcome=0, conflicts=[])
        rows.append(dict(rows[5]))
        del rows[4]

    edited(export, to, decisions=decisions, states=_without(Z), manifest=lambda said: said["tree"].update(root="00" * 32))
    return [
        ("wrong-outcome", 0, IDS[0]),
        ("wrong-conflicts", 1, IDS[1]),
        ("index-mismatch", 2, IDS[2]),
        ("wrong-reason", 3, IDS[3]),
        ("position-gap", 4, IDS[4]),
        ("position-gap", 5, IDS[5]),
        ("index-mismatch", 6, IDS[6]),
        ("double-spend", 8, IDS[8]),
    ]


PLANTS: dict[str, Plant] = {
    "wrong-outcome": _decisions(_set(0, outcome=1), ("wrong-outcome", 0, IDS[0])),
    "rejected-though-committed": _rejected_though_committed,
    "wrong-reason": _decisions(_set(1, outcome=2), ("wrong-reason", 1, IDS[1])),
    "unknown-reason": _decisions(_set(5, outcome=9), ("wrong-reason", 5, IDS[5])),
    "a-conflict-less": _decisions(lambda rows: rows[1]["conflicts"].pop(), ("wrong-conflicts", 1, IDS[1])),
    "conflicts-in-another-order": _decisions(lambda rows: rows[3]["conflicts"].reverse(), ("wrong-conflicts", 3, IDS[3])),
    "double-spend": _committed_twice,
    "double-spend-in-its-decisions-alone": _decisions(_set(5, outcome=0), ("double-spend", 5, IDS[5])),
    "log time, 100 %": _decisions(lambda rows: rows[6].update(log_time_ms=rows[6]["log_time_ms"] - 1), ("index-mismatch", 6, IDS[6])),
    "missing": _decisions(lambda rows: rows.pop(4), ("position-gap", 4, IDS[4])),
    "moved": _decisions(_set(7, position=2), ("position-gap", 7, IDS[7])),
    "there-twice": _decisions(lambda rows: rows.append(dict(rows[6])), ("position-gap", 6, IDS[6])),
    "there-twice-elsewhere": _decisions(lambda rows: rows.append({**rows[6], "position": 1}), ("position-gap", 6, IDS[6])),
    "unknown": _decisions(lambda rows: rows.append({**rows[6], "id": bytes.fromhex(NOBODYS)}), ("position-gap", 6, NOBODYS)),
    "swapped": _decisions(
        lambda rows: (rows[5].update(position=7), rows[7].update(position=5)), ("index-mismatch", 5, IDS[5]), ("index-mismatch", 7, IDS[7])
    ),
    "other-id": _decisions(_set(3, id=bytes.fromhex(NOBODYS)), ("index-mismatch", 3, IDS[3])),
    "other-id-and-its-states": _other_id_and_its_states,
    "swapped-[and]-{their}-states": _swapped_and_their_states,
    "not-of-its-own": _not_of_its_own,
    "state-missing": _states(_without(X), ("index-mismatch", 0, IDS[0])),
    "state-too-many": _states(
        lambda rows: rows.append({"state": bytes(36), "id": bytes.fromhex(IDS[1]), "position": 1}), ("index-mismatch", 1, IDS[1])
    ),
    "state-of-another": _states(_consumed(Z, 7), ("index-mismatch", 2, IDS[2])),
    "state-at-another-position": _states(lambda rows: _row(rows, Y).update(position=1), ("index-mismatch", 0, IDS[0])),
    "state-twice": _states(lambda rows: rows.append(dict(_row(rows, Y))), ("index-mismatch", 0, IDS[0])),
    "root": _other_root,
    "log-time": _other_log_time,
    "size": _other_size,
    "more-than-the-log": _more_than_the_log,
    "many": _many,
}


@pytest.mark.usefixtures("as_large")
def test_every_difference_is_reported_once(spark: SparkSession, tmp_path: Path, left: Left) -> None:
    """Every difference is reported once, alone in an export or with many others: the right type, place and transaction, and nothing else.

    The unchanged exports are clean, and so is the log.
    """
    planted = {str(tmp_path / name): plant(left.late, tmp_path / name) for name, plant in PLANTS.items()}
    verified = _verified(spark, tmp_path, left, left.early, left.late, *map(Path, planted))
    rows = verified.violations.collect()
    found: dict[str, Planted] = {str(left.early): [], str(left.late): [], LOG: [], **{source: [] for source in planted}}
    for row in rows:
        found[row.source].append((row.type, row.position, row.id))
    for source, violations in found.items():
        assert sorted(violations, key=str) == sorted(planted.get(source, []), key=str), source
    returned = {Path(row.source).name: (row.found, row.expected) for row in rows if Path(row.source).name != "many"}
    assert returned["double-spend"] == (f"committed, and it consumes {U} as {IDS[7]} does, committed at position 7", "input-conflict")
    assert returned["wrong-outcome"] == ("input-conflict", "committed")
    assert returned["unknown-reason"] == ("outcome 9", "outside-time-window")
    assert returned["moved"] == ("position 2", "position 7")
    assert returned["missing"] == ("no decision", IDS[4])
    assert returned["other-id"] == (NOBODYS, IDS[3])
    assert returned["state-missing"] == (f"{X} not consumed", f"{X} consumed by {IDS[0]} at position 0")
    assert returned["state-of-another"] == (f"{Z} consumed by {IDS[7]} at position 7", f"{Z} consumed by {IDS[2]} at position 2")
    assert returned["root"][0] == "00" * 32
    early, late = (json.loads((export / "manifest.json").read_text()) for export in (left.early, left.late))
    assert returned["log-time"][0] == f"log time {late['log_time_ms'] + 1} ms"
    assert 9 < early["decisions"] < late["decisions"] < verified.decided
    assert {source: verified.exports[source] for source in (str(left.early), str(left.late))} == {
        str(left.early): early["decisions"],
        str(left.late): late["decisions"],
    }


def test_a_folder_named_log_is_not_the_log(spark: SparkSession, tmp_path: Path, left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports name the log `log`, and an export by its absolute path, however it was given."""
    edited(left.early, tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    exports = read_exports(spark, [Path("log")])
    assert list(exports.manifests) == [str(tmp_path / "log")]
    assert {row.source for row in exports.states.collect()} == {str(tmp_path / "log")}


def _missing_file(export: Path) -> None:
    (export / "states/00000001.parquet").unlink()


def _other_bytes(export: Path) -> None:
    file = export / "decisions/00000001.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def _no_manifest(export: Path) -> None:
    (export / "manifest.json").unlink()


def _said(old: str, new: str) -> Callable[[Path], None]:
    def edit(export: Path) -> None:
        text = (export / "manifest.json").read_text()
        assert old in text
        (export / "manifest.json").write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_missing_file, r"states/00000001\.parquet: its manifest says SHA-256 .* nothing that can be read"),
        (_other_bytes, r"decisions/00000001\.parquet: its manifest says SHA-256 [0-9a-f]{64}, and there is [0-9a-f]{64}"),
        (_no_manifest, r"is no export: there is no manifest\.json"),
        (_said('"export_version": 1', '"export_version": 2'), r"export version 2, and this software reads 1: use a newer one"),
        (_said('"rows": ', '"rows": 1'), r"its files of decisions have \d+ rows, and its manifest says \d+"),
        (_said('"decisions/', '"../decisions/'), r"manifest\.json cannot be read: .*matching regex"),
        (_said('"notary": ', '"nobody": '), r"manifest\.json cannot be read: .*missing required field `notary`"),
    ],
)
def test_harm_is_reported(spark: SparkSession, tmp_path: Path, left: Left, harm: Callable[[Path], None], message: str) -> None:
    """An export that is incomplete, changed or newer is not compared with anything."""
    export = edited(left.early, tmp_path / "export")
    harm(export)
    with pytest.raises(CouldNotVerify, match=message):
        read_exports(spark, [export])


def test_what_cannot_be_compared(spark: SparkSession, tmp_path: Path, left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export of another notary or log, one given twice, or one of an index that has read beyond the log cannot be compared."""
    (tmp_path / "link").symlink_to(left.early)
    for spelling in (left.early, left.early / "../early", tmp_path / "link"):
        with pytest.raises(CouldNotVerify, match=f"the export {left.early} is named twice, also as {spelling}"):
            read_exports(spark, [left.early, spelling])
    other = edited(left.early, tmp_path / "other", manifest=lambda written: written.update(notary="O=Other"))
    rehearsal = edited(left.early, tmp_path / "rehearsal", manifest=lambda written: written.update(log=f"another {'ab' * 32}"))
    records = {partition: records if partition >= 0 else records[:3] for partition, records in left.by_partition.items()}
    exports = read_exports(spark, [left.early, other, rehearsal])
    log = read_archive(spark, archive(records, tmp_path / "archive"))
    joined = join(log, start(spark), None, Stages(spark, tmp_path / "stages"))
    monkeypatch.setattr("spark_join.verify.join", lambda *_: joined)  # once is enough
    for export, message in (
        (other, "is of O=Other, and the log of O=Notary Service"),
        (rehearsal, f"is of the log another {'ab' * 32}, and this log has the id [0-9a-f]{{64}}: export an index of this log"),
        (left.early, r"has read the ordering topic up to offset \d+, and this run read up to 3: read the log after"),
    ):
        given = msgspec.structs.replace(exports, manifests={str(export): exports.manifests[str(export)]})
        with pytest.raises(CouldNotVerify, match=f"{export} {message}"):
            verify(spark, log, start(spark), None, Stages(spark, tmp_path), given)
