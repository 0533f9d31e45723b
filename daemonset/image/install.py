#!/opt/sharepod/bin/python -I
"""Puts what pods need onto the node before agent and plugin start: the hook, and the libraries of simulated GPUs.

    sharepod-install DIRECTORY [--simulated STATE_FILE]

Files that running pods may have mapped are never overwritten: a file's name carries version and content, or the file is
replaced.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from sharepod import hook, simgpu
from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.shares import hook_file
from sharepod.process import files


def main() -> int:
    """Install; return the exit code."""
    parser = argparse.ArgumentParser(description="Put what pods need onto the node.", allow_abbrev=False)
    parser.add_argument("directory", type=Path, help="SharePod's directory on the node")
    parser.add_argument("--simulated", type=Path, metavar="STATE_FILE", help="install simulated GPUs too")
    options = parser.parse_args()
    try:
        path, cause = hook_file.serve(hook.LIBRARY, options.directory, version("sharepod"))
        if cause:
            sys.stderr.write(f"sharepod-install: {cause}: mount the node's disk without noexec there\n")
            return 1
        print(f"hook {path}")
        if options.simulated:
            libraries = options.directory / "simgpu"
            libraries.mkdir(mode=0o755, exist_ok=True)
            for source in sorted(simgpu.LIBRARY_DIR.glob("lib*.so.*")):
                files.replace(libraries / source.name, source.read_bytes(), 0o755)
                plain = libraries / source.stem
                if not plain.is_symlink():
                    plain.symlink_to(source.name)
                print(f"simulated GPU {libraries / source.name}")
            # Programs of every user use the simulated devices and make files beside their state. No user may remove the
            # files of another.
            options.simulated.parent.chmod(0o1777)
            options.simulated.touch()
            options.simulated.chmod(0o666)
    except (AgentUnavailable, OSError) as error:
        sys.stderr.write(f"sharepod-install: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
