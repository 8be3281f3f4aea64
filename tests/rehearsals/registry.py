"""The rehearsals: their names, the pages of the runbook that they follow, and the largest loss that each page promises.

The mark `rehearsal("name")` names a rehearsal's test; `test_pages.py` compares the three. To add one: a page with all its parts, a row
here, and a test that destroys the thing and follows the page.
"""

from dataclasses import dataclass

from notary.index.store import FAMILIES

NOTHING = "nothing"


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsed disaster."""

    name: str
    page: str
    """The title of its section in the runbook. Several rehearsals may share one."""
    loses: str = NOTHING
    """The decisions that may be lost at most (RPO), for the table."""


REHEARSALS = {
    each.name: each
    for each in (
        Rehearsal("a worker's disk", "A worker loses its disk"),
        Rehearsal("a broker's disk", "A broker loses its disk"),
        Rehearsal("a centre", "A centre is lost"),
        Rehearsal("two centres at once", "Two centres at once", "nothing, if the disks of one come back"),
        Rehearsal("the controllers' quorum", "The controllers have no quorum"),
        Rehearsal("a topic deleted", "A topic is deleted", f"{NOTHING} with an index; else all after the archive"),
        Rehearsal("all brokers and their disks", "All brokers lose their disks", f"{NOTHING} with an index; else all after the archive"),
        Rehearsal("the tail of both topics", "Salvaging what the log lost", f"{NOTHING} with an index; else all that no survivor shows"),
        Rehearsal("the tail of one topic", "Salvaging what the log lost", f"{NOTHING} with an index; else all that no survivor shows"),
        Rehearsal("failover to a mirror", "Failover to a mirror", f"{NOTHING} with an index; else what was not copied, normally seconds"),
        *[Rehearsal(f"an index corrupted: {family}", "An index does not open") for family in FAMILIES],
        Rehearsal("an index quarantined", "The roots of two workers differ", "answers of the wrong worker"),
        Rehearsal("the notary's key stolen", "The notary's key was stolen"),
        Rehearsal("the notary's key lost", "The notary's key is lost"),
        Rehearsal("a certificate expired", "A certificate is not renewed"),
        Rehearsal("the brokers' certificates expired", "The brokers' certificates have expired"),
        Rehearsal("a full disk: a worker's index", "A disk is full"),
        Rehearsal("a full disk: a broker's log", "A disk is full"),
        Rehearsal("a full disk: an embedded log", "A disk is full"),
        Rehearsal("a broker's clock", "A clock alarm"),
        Rehearsal("a retention setting", "Settings of the topics are wrong", "nothing before Kafka's next look"),
    )
}
