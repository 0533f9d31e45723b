"""The agent's interfaces to others: the gRPC services, and the feed to the schedulers."""
