"""Runs programs that answer each line of stdin with a line on stdout."""

from simgpu_fixtures import Program


class Dialogue(Program):
    """A run of such a program."""

    def __call__(self, line: str) -> str:
        self.tell(line)
        return self.line()
