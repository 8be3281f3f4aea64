"""Outcome, reason and conflicts of each request, the tree over them, and checkpoints against it."""
