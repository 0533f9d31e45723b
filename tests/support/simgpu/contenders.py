"""Programs that contend for the simulated device."""

import subprocess
from collections.abc import Callable

Start = Callable[..., "subprocess.Popen[str]"]


LOOP = """
    f, waits, out = kernel(start(), sys.argv[1]), sys.argv[2] == "sync", sys.stdout
    allocate(1 << 30)
    print("ready", flush=True)
    while True:
        ok(launch(f))
        if waits:
            ok(cuda.cuStreamSynchronize(None))
    """
