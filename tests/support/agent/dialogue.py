"""Programs that answer on stdout what they are told on stdin, line by line."""

from simgpu_fixtures import Program


class Dialogue(Program):
    """A run of such a program."""

    def __call__(self, line: str) -> str:
        self.tell(line)
        return self.line()
