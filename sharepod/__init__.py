"""SharePod gives each pod, or any process on one host, an exact percentage of a GPU.

Everything imports as ``sharepod.<directory>``: this folder holds one symbolic link per top-level directory, so that
nothing else enters a user's site-packages. Nothing else may live here.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sharepod")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
