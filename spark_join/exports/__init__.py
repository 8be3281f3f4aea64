"""Exported indexes, held against the decisions row by row."""
