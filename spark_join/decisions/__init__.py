"""Outcome, reason and conflicts of each request, and the tree over them."""
