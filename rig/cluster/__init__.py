"""Doubles of kubelet and of the API server, and a node between them with a real agent and device plugin."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before grpc loads: its C core would log to stderr in its own format
