"""What Prometheus sees of a node."""
