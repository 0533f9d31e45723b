"""Selects the pods that make room for others."""
