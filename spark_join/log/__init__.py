"""The two topics: read from brokers or from an archive, taken into an archive, brought back into a cluster."""
