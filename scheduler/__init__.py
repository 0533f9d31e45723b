"""One per cluster: decides where pods that hold shares go. Kubernetes schedules; here is what it cannot know, devices.

`placement.c` judges nodes. Everything around it is values in, values out, without a clock or a wire; files are read by
`trace.py` alone.
"""
