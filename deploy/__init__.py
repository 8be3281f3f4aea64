"""deploy: what runs the notary's surroundings. `deploy.local` runs real Kafka brokers on this machine's loopback."""
