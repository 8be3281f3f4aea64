"""Which ordering records take effect (R2, R5, R6, R10), contents (R3), first occurrences (R7), and whose signatures are good."""
