"""Traces of real programs: their format, those that are kept here, and how they are made without a GPU."""
