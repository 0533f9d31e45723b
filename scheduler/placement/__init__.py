"""Finds where a pod fits best: requests and nodes in, a choice out. Pure; its kernels are in C."""
