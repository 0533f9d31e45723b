"""The simulated GPU: a CUDA driver and an NVML library, in C, for machines that have none.

The libraries are found by the loader, never imported. This package only says where they are, and reads the ground truth
(``truth``); it may not import the agent or the hook, which it exists to check.
"""

from pathlib import Path

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"
"""The directory to put into ``LD_LIBRARY_PATH``: ``libcuda.so.1`` and ``libnvidia-ml.so.1``.

In a source tree ``libcuda.so`` and ``libnvidia-ml.so`` lead to them; an installed package has no such links."""

__all__ = ["LIBRARY_DIR"]
