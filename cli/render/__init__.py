"""Turns answers into tables, pictures, traces and words."""
