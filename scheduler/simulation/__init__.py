"""The cluster in virtual time."""
