"""Rehearses damaged indexes: bits that flip on the disk, in the files of one column family, and an index whose rows are wrong."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from notary.index import IndexSettings
from notary.index.rocks import RocksStore
from notary.index.store import FAMILIES, STATES
from ordering.ids import parse_state
from tests.chaos.test_disks import BLOCK_BYTES
from tests.checkers.replay import replay
from tests.clients.load import Load
from tests.clients.party import spend, state
from tests.kafka.test_receipts import unrecorded
from tests.notary.rows import put_closed_row
from tests.rehearsals.drill import Drill


def damage(tables: Sequence[Path], draw: random.Random) -> None:
    """Flip a bit in every block of these tables of a stopped index, as a failing disk might."""
    for table in tables:
        content = bytearray(table.read_bytes())
        for block in range(0, len(content), BLOCK_BYTES):
            at = draw.randrange(block, min(block + BLOCK_BYTES, len(content)))
            content[at] ^= 1 << draw.randrange(8)
        table.write_bytes(content)


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.rehearsal(f"an index corrupted: {family}")) for family in FAMILIES]
)
async def test_a_column_family_is_corrupted(drill: Drill, family: str) -> None:
    """A worker whose index has flipped bits in the files of one family stops, answers nothing from them, and replays the log."""
    signs = ("does not open", "cannot be read", "is corrupt", "is quarantined")
    _, w2 = await drill.start("w1", "w2", worker_scrub_interval_ms=1_000)
    async with drill.load() as load:
        await load.until(100)
        await w2.stop()
        index = drill.notary.directory / "index" / "w2"
        RocksStore.open(index, IndexSettings()).close()  # an open writes the rows of the write-ahead log into tables
        tables = [table for table in index.glob("*.sst") if f"name{family}".encode() in table.read_bytes()]
        assert tables
        drill.strikes(f"bits flip in {len(tables)} tables")
        damage(tables, random.Random(1))
        w2 = drill.begin("w2")
        await drill.anomaly(lambda: w2.process.poll() is not None or "is quarantined" in w2.messages, *signs[:3])
        w2.process.terminate()
        assert await w2.ended() == 2
        drill.note(w2.messages.strip().splitlines()[-1])
        assert any(text in w2.messages for text in signs)
        await drill.follow()
        await drill.workers["w2"].ready()
        await drill.over(lambda: drill.ready("w2"), "/readyz")
        await load.until(50)
    await drill.verify()


@pytest.mark.rehearsal("an index quarantined")
async def test_an_index_is_quarantined(drill: Drill) -> None:
    """One of three indexes lost a consumed state: it commits a double spend, is outvoted, and replays the log in spite of a snapshot."""
    settings = {"worker_checkpoint_interval_ms": 200, "worker_audit_interval_ms": 100}
    notary, coin = drill.notary, state("the coin")
    with (notary.directory / "notary.toml").open("a") as config:
        config.write('\n[snapshots]\nurl = "snapshots"\nevery_s = 0\n')
    w1, w2, w3 = await drill.start("w1", "w2", "w3", **settings)
    await notary.client.decide([w1.url], notary.party.submission(spend(coin, content="first")))
    await notary.same_height(w1, w2, w3)
    await asyncio.to_thread(drill.shell, "notary snapshot create --config notary.toml --name w1")
    async with Load(notary.client, notary.party, [w1.url, w2.url], seed=1) as load:
        await w3.stop()
        drill.strikes("a consumed state is missing in the index of w3")
        put_closed_row(notary.directory / "index" / "w3", STATES, parse_state(coin), None)
        (w3,) = await drill.start("w3")
        await unrecorded(notary, w3, spend(coin, content="second"))
        await drill.anomaly(lambda: "is quarantined: at " in w3.messages, "is quarantined: at ", "notary_index_quarantined")
        assert await drill.metric(w3, "notary_index_quarantined ") == 1
        await drill.follow()
        w3 = await drill.workers["w3"].ready()
        assert "restored from a snapshot" not in w3.messages, "the page has it replay the log"
        await drill.over(lambda: drill.ready("w1", "w2", "w3"), "notary_index_quarantined", "/readyz")
        await load.until(50)
    # The checkpoints of the wrong index stay in the log. But the others may outvote it before it writes one.
    replayed = replay((await notary.remains()).by_partition)
    is_wrong = any(root.counted and root.root != replayed.root(root.size) for root in replayed.checkpoints)
    await drill.verify(roots_right=False, violations=["root-mismatch"] * is_wrong)
