"""The controller of gates: which of the jobs that wait are released, and how that is written."""
