"""Ask NVML through pynvml, as a monitoring tool does, and answer as JSON: one expression a line, over stdin.

Names of pynvml are visible; `gpu(n)` is the handle of device n. An NVML error is answered as its class name.
"""

import json
import sys
from typing import Any

import pynvml


def plain(value: Any) -> Any:
    """Turn what pynvml gives back into what JSON can carry."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if hasattr(value, "__dict__"):
        return {name: plain(item) for name, item in vars(value).items()}
    return value


def main() -> None:
    """Answer until the input ends."""
    pynvml.nvmlInit()
    names = {name: getattr(pynvml, name) for name in dir(pynvml)}
    names["gpu"] = pynvml.nvmlDeviceGetHandleByIndex
    for line in sys.stdin:
        try:
            answer = plain(eval(line, names))  # noqa: S307 (the test's own expressions)
        except pynvml.NVMLError as error:
            answer = type(error).__name__
        print(json.dumps(answer), flush=True)
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
