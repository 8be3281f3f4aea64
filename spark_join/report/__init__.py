"""Writes the report of a verification."""
