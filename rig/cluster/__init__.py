"""Doubles of kubelet and of the API server, and a node between them whose agent and device plugin are real."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before grpc loads: its C core logs to stderr in its own way
