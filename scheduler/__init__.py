"""One per cluster: decides where pods that hold shares go. Kubernetes schedules; here is what it cannot know, devices.

`placement.c` judges nodes; everything around it is values in, values out: no clock, no file, no wire.
"""
