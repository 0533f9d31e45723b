"""What is opened for a while: it is closed whatever happens, also when it did not open wholly."""

from types import TracebackType
from typing import Self


class Closing:
    """A context manager that opens and closes itself."""

    def open(self) -> None:
        """Begin; when this fails, `close` follows too."""

    def close(self) -> None:
        """Undo whatever has been done so far."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return itself, open."""
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
