"""Random logs from a seed, with anything that a writer with or without a key may append."""

from random import Random
from struct import pack

from tests.checkers.records import FORMAT_VERSION, View
from tests.checkers.replay import ORDERING
from tests.checkers.signed_log import SignedLog, private_key, public

PARTITIONS = 2
DAY_MS = 86_400_000


def random_log(seed: int, moves: int) -> SignedLog:
    """Returns a log of this many moves, most of them those of honest workers, so that many records take effect."""
    draw = Random(seed)
    log = SignedLog(PARTITIONS)
    for number in range(draw.randrange(4)):
        log.register(f"w{number}", reads=draw.choice([1, 1, 2]))
    for number in range(moves):
        _move(log, draw, number)
    return log


def _move(log: SignedLog, draw: Random, number: int) -> None:
    replayed = log.replayed()
    incarnation = draw.randrange(0 if number % 9 == 0 else 1, len(replayed.incarnations) + 2)
    state = replayed.unfenced(incarnation)
    reached = state.sequence_last if state else 0
    sequence = reached + draw.choice([1, 1, 1, 1, 2, 0])
    partition = draw.randrange(replayed.partitions + (number % 9 == 1))
    labels = draw.sample("abcdefgh", draw.choice([0, 1, 1, 2]))
    view = _view(log, draw)
    at = replayed.log_time + draw.choice([-5, 1_000, DAY_MS]) if draw.randrange(8) == 0 else None
    match draw.randrange(20):
        case 0:
            log.register(f"w{draw.randrange(3)}", draw.choice([None, "once", "twice"]), view=view, at=at, reads=draw.choice([1, 2]))
        case 1:
            log.fence(incarnation, reached + draw.choice([0, 0, 1]), view=view)
        case 2 | 3:
            log.checkpoint(incarnation, draw.randrange(4), view=view)
        case 4:
            before = log.key
            log.rotate(f"key {draw.randrange(4)}")
            if log.replayed().keys[-1] == public(before):  # a former key never comes back
                log.key = before
        case 5:
            log.partitions(draw.randrange(1, 4))
        case 6:
            if draw.randrange(3) == 0:
                log.retire(incarnation)
        case 7:
            log.settle(view)
        case 8:
            log.again(draw.choice(log.by_partition[ORDERING]))
        case 9:
            forger = private_key("forger")
            log.entry(incarnation, sequence, *labels, partition=partition, by=forger)
            log.write(draw.choice([5, 7, 8, 9]), draw.randbytes(draw.choice([2, 4, 8, 96])), by=forger)
            # Each of the two keys signs what only the other one may, and the owner signs keys that are not endorsed.
            log.entry(incarnation, sequence, *labels, partition=partition, by=log.owner)
            log.write(8, pack(">I", 9), by=log.key)
            log.write(7, public(forger) + forger.sign(b"notary/log-key/v1\n" + log.log_id + public(log.owner)))
            log.write(7, public(forger) + log.key_body(private_key("another"))[32:])
        case 10:
            log.put(ORDERING, None, draw.choice([None, b"", b"\x01\x02", draw.randbytes(100), log.signed(1, b"short")]))
            log.activate(draw.choice([1, FORMAT_VERSION + 1, 65535]))
        case 11:
            other = SignedLog(PARTITIONS, "other").by_partition[ORDERING][0].value
            log.put(ORDERING, None, draw.choice([other, log.signed(6, b"short")]))
        case 12:  # a fill before the payload, and a forged one before that fill
            log.fill(incarnation, sequence, *labels, partition=partition, by=private_key("forger"))
            log.fill(incarnation, sequence, *labels, partition=partition)
            log.payload(incarnation, sequence, *labels, partition=partition)
            log.entry(incarnation, sequence, *labels, partition=partition, view=view)
        case 13:  # another value under the same key before it; and the payload in another partition
            log.payload(incarnation, sequence, "other", partition=partition)
            log.payload(incarnation, sequence, *labels, partition=1 - min(partition, 1))
            log.batch(incarnation, sequence, *labels, partition=partition)
        case 14:
            if draw.randrange(4) == 0:
                log.entry(incarnation, sequence, "lost", partition=partition)
            value = draw.choice([b"garbage", b"[]", b""])
            log.payload(incarnation, sequence, partition=partition, value=value)
            log.entry(incarnation, sequence, partition=partition, value=value, ids=["ab" * 32])
        case _:
            log.payload(incarnation, sequence, *labels, partition=partition)
            log.entry(incarnation, sequence, *labels, partition=partition, view=view, at=at, sent_at=draw.choice([None, None, 5]))


def _view(log: SignedLog, draw: Random) -> View | None:
    """Returns a random view, or None for the view of a writer that has read everything."""
    seen = log.replayed().seen
    return draw.choice([None] * 6 + [log.view(draw.randrange(1, seen + 1)), View(seen + 1, bytes(32)), View(seen, bytes(32))])
