"""What is written of a verification."""
