"""The owner of a simulated notary, with the key that no worker has: control records, and the related changes outside the log (R10).

The contract's table decides which of these records take effect; the checkers apply it.
"""

import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary import keys
from notary.keyring import FORMER
from ordering.log import ORDERING
from ordering.records import SALVAGE_FORMAT, Activate, OwnerRecord, Partitions, Settle, Trim, View
from ordering.signatures import SigningKey, endorse_key, sign_record
from tests.checkers.replay import replay
from tests.simulation.deployment import (
    HISTORY,
    KEY,
    OWNER,
    deployment,
    genesis,
    key_of,
    log_id,
    signing_key,
    verifier_key,
    write_key,
    write_keys,
)
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

LATE_S = (1.0, 4.0, 9.0)
"""The time in seconds after which the workers get a key's files, where they get them after its record."""


class Owner:
    """The owner of one simulated notary."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.log_id = log_id(simulation.plan.partitions)
        self._keys = [key_of("the notary")]
        self._put_back = b""
        self.files_until_s = float("-inf")
        """The time until which the workers lack the files of a key that is in force."""
        self._folder: Path | None = None
        if simulation.plan.rotations or simulation.plan.salvages:
            self._folder = Path(tempfile.mkdtemp(prefix="simulation-"))
            for file in deployment().directory.iterdir():
                if file.is_file():
                    shutil.copy2(file, self._folder / file.name)

    @property
    def directory(self) -> Path:
        """The configuration directory of all workers, which holds their keys."""
        return self._folder or deployment().directory

    @property
    def verifier_keys(self) -> list[str]:
        """All keys that may have signed a receipt."""
        return [verifier_key(key) for key in self._keys]

    def begin(self) -> None:
        """Start the log with its genesis record."""
        self._simulation.cluster.land(ORDERING, None, genesis(self._simulation.plan.partitions))
        if self._simulation.plan.salvages:
            self.write(Activate(SALVAGE_FORMAT))

    def close(self) -> None:
        """Delete the directory."""
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def in_force(self) -> SigningKey:
        """Returns the key that is in force at the end of the log."""
        public_key = replay(self._simulation.cluster.by_partition).keys[-1]
        return next(each for each in (*self.signing_keys(), *self._simulation.salvaging.keys) if each.public_key == public_key)

    def signing_keys(self) -> list[SigningKey]:
        """Returns all keys so far, also former ones."""
        return [signing_key(key) for key in self._keys]

    # ---- control records ----

    def write(self, record: OwnerRecord) -> None:
        """Sign a control record and append it."""
        self._simulation.cluster.land(ORDERING, None, sign_record(record, self.log_id, OWNER))

    def settle(self, view: View) -> None:
        """Settle this history."""
        is_named = SALVAGE_FORMAT in replay(self._simulation.cluster.by_partition).versions
        self.write(Settle(view, self.in_force().public_key if is_named else b""))

    def trim(self, draw: random.Random) -> bool:
        """Declare the payloads of the first decisions unneeded, sometimes by a record that lands late.

        Returns False where nothing is decided, or no such record may count.
        """
        replayed = replay(self._simulation.cluster.by_partition)
        if SALVAGE_FORMAT not in replayed.versions or not replayed.size:
            return False
        position = draw.randint(1, replayed.size)
        record = Trim(replayed.keys[-1], View(replayed.seen, replayed.history), position, replayed.root(position))
        self._simulation.cluster.later(draw.choice([0.0, 0.0, 2.0, 10.0]), lambda: self.write(record))
        return True

    def add_partitions(self, count: int) -> None:
        """Add the partitions to the brokers first, then declare them in the log."""
        self._simulation.cluster.add_partitions(count)
        self.write(Partitions(count))

    def rotate(self, times: int) -> bool:
        """Put another key in force. Workers get its files before the log gets its record, or in some plans seconds after that.

        Returns False if no rotation is possible now.

        `times`: the number of rotations at once; the workers get only the last key. They keep the key that was in force, since a batch that
        was signed with it may still wait for a fill.
        """
        simulation = self._simulation
        if ORDERING in simulation.cluster.shown or not simulation.cluster.takes(ORDERING):
            return False
        if simulation.loop.time() <= self.files_until_s or not self._promote():
            return False
        before = self._keys[-1]
        following: list[Ed25519PrivateKey] = []
        for _ in range(times):
            following.append(key_of(f"the notary {len(self._keys) + len(following)} of {simulation.plan.seed}"))
        self._keys += following
        if simulation.plan.late_keys:
            late_s = LATE_S[len(self._keys) % len(LATE_S)]
            self.files_until_s = simulation.loop.time() + late_s
            simulation.cluster.later(late_s, lambda: write_keys(self.directory, self._keys, keys.NEXT))
            simulation.count("keys before their files")
        else:
            write_keys(self.directory, self._keys, keys.NEXT)
        for key in following:
            self.write(endorse_key(signing_key(key), self.log_id, signing_key(before).public_key))
            before = key
        return True

    def adopt(self, key: Ed25519PrivateKey) -> None:
        """Give the workers the key of a salvage, which is in force."""
        self._keys.append(key)
        write_keys(self.directory, self._keys)
        for name in (KEY, HISTORY):
            (self.directory / (name + keys.NEXT)).unlink(missing_ok=True)

    def repair(self) -> bool:
        """Put the workers' key in force again after a loss took its record away. Returns False if the workers have the right key."""
        newest, present = self.signing_keys()[-1], self.in_force()
        if newest.public_key == present.public_key or not self._simulation.losses.damages:
            return False
        self.write(endorse_key(newest, self.log_id, present.public_key))
        return True

    def put_back(self, public_key: bytes) -> bool:
        """Put a former key beside the workers' key, so that they can fill holes from before its rotation; see the runbook's "A hole that
        stays". Returns False if it lies there already, or is not a former key."""
        former = next((key for key in self._keys[:-1] if signing_key(key).public_key == public_key), None)
        if former is None or public_key == self._put_back:
            return False
        self._put_back = public_key
        write_key(self.directory / (KEY + FORMER), former)
        return True

    def offer_again(self) -> bool:
        """Endorse a former key once more, signed by that key: it must not come into force again. Returns False without a former key."""
        if len(self._keys) < 2:
            return False
        former, present = self.signing_keys()[0], self.in_force()
        self.write(endorse_key(former, self.log_id, present.public_key))
        return True

    def _promote(self) -> bool:
        """Install the new key's files once every worker has read that it is in force; returns False while one has not."""
        assert self._folder is not None, "this plan has no rotation"
        if len(self._keys) == 1:
            return True
        newest = signing_key(self._keys[-1]).public_key
        if self._simulation.plan.loses or any(_key_of(machine) != newest for machine in self._simulation.machines):
            return False
        for name in (KEY, HISTORY):
            if (following := self._folder / (name + keys.NEXT)).exists():  # a salvage's key is in place already
                following.replace(self._folder / name)
        return True


def _key_of(machine: Machine) -> bytes:
    process = machine.running()
    log_state = None if process is None or process.worker is None else process.worker.driver.joiner.log_state
    return b"" if log_state is None else bytes(log_state.key)
