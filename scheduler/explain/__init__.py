"""Explains why a pod is where it is, or waits, and shows the state of the cluster."""
