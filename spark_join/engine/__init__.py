"""Spark itself: the session and a Java for it, files between the stages, progress, and what DataFrames lack."""
