"""A plugin in a process of its own, to be killed: `plugin_process.py DIRECTORY`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from memory_binder import plugin


async def main() -> None:
    async with plugin(Path(sys.argv[1])):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
