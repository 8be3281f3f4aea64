"""Outcome, reason and conflicts of each request, the Merkle tree over these decisions, and the checkpoints compared with its roots."""
