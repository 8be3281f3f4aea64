"""Compares exported indexes with the decisions of the log, row by row."""
