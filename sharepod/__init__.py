"""SharePod gives each pod, or any process on one host, an exact percentage of a GPU.

Everything imports as ``sharepod.<directory>``: this folder holds one symbolic link per top-level directory, so that
nothing else enters a user's site-packages. Nothing else may live here.
"""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: that takes longer than anything else before the command can answer."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sharepod")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0.0.0"
