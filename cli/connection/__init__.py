"""Finds the agent, starts a private one, and asks the cluster's scheduler."""
