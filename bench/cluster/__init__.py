"""Measurements of a cluster: placement, the usage feed, density, scheduling cycles, and which pods yield."""
