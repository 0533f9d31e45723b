"""Begins and ends every process of ours: settings, log, files that are read again, readiness, signals, exit codes.

It knows no share, no pod and no GPU. Agent, device plugin, scheduler and webhook use it. It imports none of them.
"""
