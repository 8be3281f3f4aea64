"""What counts, in which order: entries, lives, log time (R2, R5, R6), contents (R3), first occurrences (R7)."""
