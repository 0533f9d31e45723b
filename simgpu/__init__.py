"""The simulated GPU: a CUDA driver and an NVML library, in C, for machines that have none.

The loader finds the libraries; Python never imports them. This package only tells where they are and reads the ground
truth (``truth``). It may not import the agent or the hook, because it exists to check them.
"""

from pathlib import Path

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"
"""The directory to put into ``LD_LIBRARY_PATH``: ``libcuda.so.1`` and ``libnvidia-ml.so.1``.

In a source tree ``libcuda.so`` and ``libnvidia-ml.so`` link to them. An installed package has no such links."""

__all__ = ["LIBRARY_DIR"]
