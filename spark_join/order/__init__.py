"""Signatures, ordering records in effect (R2, R5, R6, R10), contents (R3), and first occurrences (R7)."""
