"""One process per cluster: decides where pods with shares go. It adds what kube-scheduler cannot know: devices.

`placement.c` judges nodes. Everything around it takes values and returns values, without a clock or a network; only
`trace.py` reads files.
"""
