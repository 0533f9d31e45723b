"""The policy in virtual time: `python -m bench.model` prints ours beside a model of Gemini's on the same programs.

Nothing here reads a clock or needs a device: every figure is computed, and the same on every machine.
"""
