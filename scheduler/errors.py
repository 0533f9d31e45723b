"""What is wrong with what placement was given; the text says what, the limit, the remedy."""


class PlacementError(Exception):
    """Nothing was changed."""


class TraceError(PlacementError):
    """A file of nodes or pods cannot be read; the text names the line."""


class UsageRefused(PlacementError):
    """What an agent told cannot be, or does not fit what it told before."""
