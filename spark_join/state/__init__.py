"""What is known of a log up to some ordering record, so that a later run goes on from there."""
