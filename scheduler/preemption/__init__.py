"""Which pods make room for others."""
