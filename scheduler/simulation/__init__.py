"""Simulates the scheduler's decisions in virtual time."""
