"""How every process of ours begins and ends: settings, log, files that are read again, readiness, signals, exit codes.

It knows no share, no pod and no GPU. Agent, device plugin, scheduler and webhook stand on it; it imports none of them.
"""
