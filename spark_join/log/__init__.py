"""The two topics: read from brokers or from an archive, added to an archive, restored into a cluster."""
