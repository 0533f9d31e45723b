"""Holds what the scheduler knows of the cluster."""
