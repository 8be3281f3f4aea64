"""Rules that can be broken, one at a time: by name the reason and the seeds, from 1 on, within which the checks must notice it."""

FAULTS = {
    "gaps are closed": ("positions that nobody knows are left out, so what stands behind them moves forward", 100),
    "gaps end it": ("only what is known without a gap is put back", 100),
    "positions are used again": ("the new side begins behind the last leaf that is known, not at the largest size of a checkpoint", 100),
    "conflicts reserve nothing": ("a state is free if a rejection alone shows that it was consumed", 300),
    "sources are merged": ("of two sources that disagree the first one wins", 100),
    "keys are not compared": ("a receipt from after a salvage may differ above a position that it declared lost", 50),
    "decisions are not compared": ("sources are compared by their trees alone", 300),
    "lost contents are filled": ("an entry whose content is lost is filled, and what stands behind it is decided", 100),
    "no key": ("a salvage needs no new key, so old workers write on", 100),
    "a key for all attempts": ("a salvage that is begun again needs no other key, though the log may have lost that it was done", 300),
    "a key closes nothing": ("items count under another key than that of their `begin`", 300),
    "any view": ("a record of the salvage takes effect though its view is of another place", 300),
    "items count at once": ("items take effect before `done`: half a salvage cannot be begun again", 300),
    "done from what the log has": ("`done` gives the root of the items that the log has, not of those that were planned", 300),
    "done unread": ("the owner writes `done` without a look at the items that the log has: readers without a tree believe it", 50),
    "any key": ("records of a salvage count under any key, so those of a lost history are evidence", 300),
    "done leaves suspicions": ("`done` does not settle what was suspected", 100),
    "log time goes back": ("items do not move log time", 100),
    "a key comes back": ("after a second disaster the key that the log lost is used again", 300),
    "trimmed by what was joined": ("a partition is trimmed up to the last content joined", 300),
    "trimmed beyond the archive": ("a snapshot that the archive does not cover lets payloads be freed", 300),
    "trimmed is filled": ("a reader takes a trimmed payload for a hole", 300),
    "settles count in a salvage": ("a settle record of the lost history, behind a sealed entry, stops every reader", 1_000),
    "a settle names no key": ("a settle record that the log lost comes back on the new side, and stops every reader", 50),
    "a seal names no key": ("a seal of an earlier side counts for a batch of the new side with the same key and payload", 1),
}

RARE = {
    "a settle names no key": 470,
    "a seal names no key": 31004137,
    "done unread": 1240,
    "trimmed beyond the archive": 120,
}
"""The seed from which to search for faults that few histories notice, in place of 1; `--faults` searches from there too."""
