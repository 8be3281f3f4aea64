"""The state of a log up to some ordering record, from which a later run continues."""
