"""The node's backend: one agent per node.

The arbiter (C, `arbiter.c`) grants turns; everything off the launch path is here: registration and admission of
shares, the ledger, NVML inventory and health, gRPC, metrics and checkpoints. Nothing of the cluster may live here
(`scheduler/`), and nothing of the command line (`cli/`).
"""
