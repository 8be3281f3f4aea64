"""Random histories: traffic, a disaster, a salvage with everything that may come between, traffic on the new side, and again.

Workers of the old side live on after a disaster and may write to the new log. In each round the operator gets any subset of what survived.
"""

from collections import deque
from inspect import GEN_CLOSED, getgeneratorstate

from tests.model.checks import check_end, check_held
from tests.model.log import OWNER, PARTITIONS, Decision, Item, Log, Record
from tests.model.owner import ANOTHER_IS_SETTLED, NoBase, Salvage, base_of
from tests.model.plan import THE_LOG, Index, Plan, Receipt, Refused
from tests.model.reader import Reader
from tests.model.traffic import Broken, Traffic
from tests.model.tree import digest, path, root
from tests.model.worker import Worker


class RandomHistory(Traffic):
    """One history."""

    def disaster(self) -> None:
        draw, old = self.draw, self.log
        kind = draw.choice(["order", "payload", "both", "both", "mirror", "mirror", "archive"])
        ends = list(old.ends)
        if kind in ("order", "both"):
            ends[0] = max(1, ends[0] - draw.choice([1, 2, 5, 12]))
        if kind in ("payload", "both"):
            for partition in draw.choice([[1], [2], [1, 2]]):
                ends[partition] = max(0, ends[partition] - draw.choice([1, 2, 5]))
        if kind == "mirror":
            ends = list(self.mirrored)
        if kind == "archive" and self.archived:
            ends = list(self.archived)
        elif kind == "archive":
            kind, ends[0] = "order", max(1, ends[0] - 3)
        if any(old.start) and kind != "mirror" and self.archived and any(end < a for end, a in zip(ends, self.archived, strict=True)):
            kind, ends = "archive", list(self.archived)  # less than the archive: it is restored
        self.count(f"disaster: {kind}")
        if draw.random() < 0.3:
            self.count("brokers' clocks behind the old ones")
            self.clock[0] -= draw.choice([10, 40])
        self.log = old.copy(ends)
        if kind not in ("mirror", "archive"):
            self.log.start = list(old.start)
        self.lost_records = [(-1, record) for _, record in old.order[ends[0] :]]
        self.lost_records += [(n, content) for n in range(PARTITIONS) for content in old.pay[n][ends[n + 1] :]]
        self.mirrored = list(self.log.ends)
        self.shorten()
        survived = [(f"snapshot {n}", snapshot) for n, snapshot in enumerate(self.snapshots)]
        for worker in self.workers:
            if kind == "mirror" and draw.random() < 0.5:  # the old side continues for a while, in its own log
                for _ in range(5):
                    worker.step()
            survived.append((f"index of {worker.name}", worker.disk))
        self.snapshots = [one for one in self.snapshots if self.fits(one, ends)]
        self.stale_workers = self.workers
        self.workers = []
        for worker in self.stale_workers:
            if kind != "mirror":
                worker.log = self.log
                self.anomaly(worker)
        self.wires = {
            place: deque((self.log if draw.random() < 0.7 else log, one) for log, one in wire) for place, wire in self.wires.items()
        }
        self.sources: list[Index | Receipt] = [
            Index(f"{name} in round {self.generation}", tuple(r.leaves), tuple(r.spent.items())) for name, r in survived
        ]
        self.sources += self.receipts
        self.receipts, self.held = [], []
        self.unnoticed()

    def anomaly(self, worker: Worker) -> None:
        """R10: after an interruption a worker forgets what it has not applied, and stops if the log lost what it has."""
        if worker.log is self.log:
            worker.reader = worker.reader.persisted()
            if not self.fits(worker.reader, self.log.ends):
                worker.stopped = "the log lost what this index holds"

    @staticmethod
    def fits(reader: Reader, ends: list[int]) -> bool:
        return reader.offset <= ends[0] and all(to <= end for to, end in zip(reader.joined_to, ends[1:], strict=True))

    def unnoticed(self) -> None:
        """Now and then the operator is slow: workers that have not noticed go on in the cut log, and even answer."""
        before, end = base_of(self.log, self.snapshots, self.broken), len(self.log.order)
        if self.draw.random() < 0.2:
            self.count("unnoticed for a while")
            for _ in range(25):
                self.clock[0] += 1
                if self.wires and self.draw.random() < 0.7:
                    self.deliver()
                for worker in self.stale_workers:
                    if worker.log is self.log:
                        worker.step()
            self.sources += self.receipts
            self.receipts = []
            after = base_of(self.log, self.snapshots, self.broken)
            # Records behind a hole count once it is sealed, if a salvage's `done` follows that was sealed there before.
            self.forked |= after.hashes != before.hashes or after.view != before.view
            self.forked |= after.hole is not None and len(self.log.order) > end

    # ---- survivors

    def survivors(self) -> list[Index | Receipt]:
        """Any subset of what survived; some receipts without their requests, and now and then what is of no use or false."""
        draw = self.draw
        share = draw.choice([0.0, 0.15, 0.5, 1.0])
        chosen: list[Index | Receipt] = [
            one for one in self.sources if isinstance(one, Index) and draw.random() < draw.choice([0.0, 0.3, 0.6])
        ]
        kept = [one for one in self.sources if isinstance(one, Receipt) and draw.random() < share]
        chosen += [one._replace(request=None) if draw.random() < 0.02 else one for one in kept]
        if draw.random() < 0.1 and self.late:
            self.count("survivors of former rounds")
            self.forked = True
            chosen += draw.sample(self.late, min(3, len(self.late)))
        if draw.random() < 0.1 and chosen:
            self.count("false sources")
            self.forked = True
            chosen.append(self.false(draw.choice(chosen)))
        return chosen

    def false(self, one: Index | Receipt) -> Index | Receipt:
        """Returns a source of another history: one leaf is another, and its tree fits."""
        draw = self.draw
        if isinstance(one, Index):
            if not one.leaves:
                return one
            leaves = list(one.leaves)
            position = draw.randrange(len(leaves))
        else:
            position, leaves = one.decision.position, [Item(hash=digest(n)) for n in range(one.size)]
        request = self.request()
        decision = Decision(position, request.id, self.clock[0], "committed")
        leaves[position] = Item(decision, request.inputs)
        if isinstance(one, Index):
            sound = Reader()
            for item in leaves:
                sound.put(item)
            spent = tuple(sound.spent.items()) if position % 2 else one.spent  # of these leaves, or of others
            return one._replace(name="a false index", leaves=tuple(leaves), spent=spent)
        hashes = [item.leaf(n) for n, item in enumerate(leaves)]
        return Receipt("a false receipt", decision, request, one.size, root(hashes), tuple(path(position, hashes)), one.key)

    # ---- salvage

    def rescue(self) -> None:
        """Salvage until it is done; what is refused is dropped, or the log is cut before the place."""
        chosen = self.survivors()
        self.attempts = set()
        salvages = base_of(self.log, self.snapshots, self.broken).salvages
        lost_key = self.key if self.generation and "a key comes back" in self.broken else None
        for _ in range(60):
            key = lost_key or self.new_key()
            self.attempts.add(key)
            run = Salvage(self.log, self.snapshots, chosen, key, self.broken)
            try:
                planned = self.run(run)
            except NoBase as problem:
                raise Broken(f"P6 {problem}") from problem
            except Refused as refusal:
                chosen = self.settle_refusal(refusal, chosen)
                continue
            if planned is not None:
                break
            self.count("salvages that crashed")
            if len(base_of(self.log, self.snapshots, self.broken).salvages) > len(salvages):
                self.forked = True  # it is done, by a rival or before the crash: sources that come now come late
            if self.draw.random() < 0.5:
                more = [one for one in self.sources if one not in chosen and self.draw.random() < 0.5]
                chosen = chosen + more
        else:
            raise Broken("L a salvage never ends")
        self.count("salvages")
        self.count_items(planned)
        self.held = chosen
        self.late += [one for one in self.sources if one not in chosen]
        self.after_salvage(planned)

    def count_items(self, planned: Plan) -> None:
        for item in planned.items:
            self.count("items: " + ("decision" if item.decision else "lost" if item.is_lost else "hash"))

    def settle_refusal(self, refusal: Refused, chosen: list[Index | Receipt]) -> list[Index | Receipt]:
        if refusal.why == ANOTHER_IS_SETTLED and self.forked:
            self.count("refused: another history is settled, the log cut before the place")
            cut = self.log.copy([base_of(self.log, self.snapshots, self.broken).offset, *self.log.ends[1:]])
            cut.start = list(self.log.start)
            self.move_to(cut)
            return chosen
        bare = "without its request" in refusal.why
        self.count("refused: request missing" if bare else "refused: sources disagree")
        if not self.forked and not bare:
            raise Broken(f"L refused without a disagreement: {refusal}")
        names = [name for name in refusal.names if name and name != THE_LOG]
        if THE_LOG in refusal.names and self.draw.random() < 0.5 and not any(self.log.start):
            self.count("the log cut before the place")
            reader, end = Reader(self.broken), 0
            for end, (time, record) in enumerate(self.log.order):  # noqa: B007
                reader = Reader(self.broken)
                cut = self.log.copy([end + 1, *self.log.ends[1:]])
                reader.read(cut)
                if reader.size > refusal.position or reader.hole:
                    break
            before = base_of(self.log, self.snapshots, self.broken).salvages
            self.move_to(self.log.copy([max(1, end), *self.log.ends[1:]]))
            self.given_up |= set(before) - set(base_of(self.log, self.snapshots, self.broken).salvages)
            if reader.size <= refusal.position:
                return [one for one in chosen if one.name not in names]
            return chosen
        dropped = self.draw.choice(names)
        return [one for one in chosen if one.name != dropped]

    def move_to(self, log: Log) -> None:
        moved = [worker for worker in self.stale_workers if worker.log is self.log]
        self.wires = {place: deque((log if of is self.log else of, one) for of, one in wire) for place, wire in self.wires.items()}
        self.log = log
        for worker in moved:
            worker.log = log
            self.anomaly(worker)
        self.shorten()
        self.snapshots = [one for one in self.snapshots if self.fits(one, log.ends)]

    def shorten(self) -> None:
        """Forget what mirror and archive have beyond the log, once it was cut again."""
        ends = self.log.ends
        self.mirrored = [min(pair) for pair in zip(self.mirrored, ends, strict=True)]
        if self.archived and any(a > end for a, end in zip(self.archived, ends, strict=True)):
            self.archived = None

    def run(self, run: Salvage) -> Plan | None:
        """Step through one run, or two rivals, while others write. None: it crashed half-way."""
        runs = [run.steps(self.clock)]
        if self.draw.random() < 0.1:
            self.count("two commands at once")
            rival = Salvage(self.log, self.snapshots, run.survivors, self.new_key(), self.broken)
            self.attempts.add(rival.key)
            runs.append(rival.steps(self.clock))
        crashes_at = self.draw.randrange(12) if self.draw.random() < 0.3 else -1
        disturbed = self.draw.random() < 0.6
        for number in range(400):
            self.clock[0] += 1
            if number == crashes_at:
                return None
            if len(runs) == 2 and self.draw.random() < 0.1:
                runs.pop()  # somebody stops the rival; for as long as both go on, each may close what the other has begun
            one = self.draw.choice(runs)
            if next(one, None) is None:
                runs.remove(one)
                if getgeneratorstate(one) == GEN_CLOSED and run.done is not None:
                    return run.done
                if not runs:
                    return run.done
            elif disturbed and self.draw.random() < 0.5:
                self.disturb()
        raise Broken("L a salvage never ends")

    def disturb(self) -> None:
        """Between two records of the owner: old records, copies, workers of both sides, another loss."""
        draw, dice = self.draw, self.draw.random()
        before = base_of(self.log, self.snapshots, self.broken)
        if dice < 0.35 and self.lost_records:
            owners = [one for one in self.lost_records if one[1].signer.startswith(OWNER)]
            partition, record = draw.choice(owners if owners and draw.random() < 0.3 else self.lost_records)
            self.count("lost records that come back")
            self.put(self.log, partition, record)
            self.forked |= isinstance(record, Record) and record.kind == "settle"
        elif dice < 0.5:
            present = [record for _, record in self.log.order if record.signer.startswith(OWNER)]
            self.count("copies of the owner's records")
            self.put(self.log, -1, draw.choice(present))
        elif dice < 0.75 and self.wires:
            self.count("old records under way")
            self.deliver()
        elif dice < 0.9:
            self.count("workers during a salvage")
            for worker in self.stale_workers:
                worker.step()
            if draw.random() < 0.3:
                early = self._worker("early", Reader(self.broken))
                early.keys.add(before.key)
                early.generation += 1  # it is of the new side
                for _ in range(4):
                    early.step()
        elif not any(self.log.start):
            self.count("another loss during a salvage")
            ends = self.log.ends
            ends[0] = max(1, ends[0] - draw.choice([1, 2, 3]))
            lost = [(-1, record) for _, record in self.log.order[ends[0] :]]
            self.lost_records += lost
            del self.log.order[ends[0] :]
            self.snapshots = [one for one in self.snapshots if self.fits(one, ends)]
            self.shorten()
            for worker in self.stale_workers:
                self.anomaly(worker)
            return
        after = base_of(self.log, self.snapshots, self.broken)
        self.forked |= after.hashes != before.hashes or (after.hole is None and before.hole is not None and not after.sealed)

    def after_salvage(self, planned: Plan) -> None:
        reader = base_of(self.log, self.snapshots, self.broken)
        self.generation += 1
        self.late += self.receipts
        self.receipts = []
        self.shorten()
        self.since = len(self.log.order)
        self.key = reader.key
        for position, item in enumerate(reader.leaves):
            if item.is_lost:
                again = position >= reader.size - len(planned.items)
                self.lost_in[position] = self.generation if again else self.lost_in.get(position, self.generation)
        check_held(self, reader, planned)
        self.planned = planned
        names = self.draw.choice([("a", "b"), ("a", "b", "d")])
        start = [one for one in self.snapshots if self.draw.random() < 0.5] or (self.snapshots if any(self.log.start) else [])
        self.workers = [self._worker(name, self.draw.choice(start) if start else Reader(self.broken)) for name in names]

    # ---- all of it

    def traffic(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            if self.stale_workers and self.draw.random() < 0.2:
                stale = self.draw.choice(self.stale_workers)
                stale.step()
            if self.lost_records and self.draw.random() < 0.05:
                self.put(self.log, *self.draw.choice(self.lost_records))
            if self.draw.random() < 0.02:
                self.put(self.log, -1, self.draw.choice(self.log.order)[1])

    def run_all(self) -> None:
        self.traffic(self.draw.choice([40, 80, 120]))
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            self.forked = False
            self.disaster()
            self.rescue()
            self.traffic(self.draw.choice([30, 60]))
        check_end(self)
