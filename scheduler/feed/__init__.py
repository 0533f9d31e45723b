"""Receives what the agents of the nodes report."""
