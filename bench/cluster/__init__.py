"""Measurements of a cluster: placement, the usage feed, density, rounds, and which pods yield."""
