"""Everything about Spark itself: the session and its Java, files between the stages, progress, and functions that DataFrames lack."""
