"""A base for context managers that are closed in every case, also when they opened only in part."""

from types import TracebackType
from typing import Self


class Closing:
    """A context manager that opens and closes itself."""

    def open(self) -> None:
        """Begin. If this fails, `close` is called too."""

    def close(self) -> None:
        """Undo what has been done so far."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Open it and return itself."""
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
