"""The errors of placement's input. Each text says what is wrong, the limit and the remedy."""


class PlacementError(Exception):
    """The input cannot be used. Nothing was changed."""


class TraceError(PlacementError):
    """A file of nodes or pods cannot be read; the text names the line."""


class UsageRefused(PlacementError):
    """An agent's report is impossible, or does not fit what the agent reported before."""
