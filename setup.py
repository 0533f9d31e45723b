"""Build what a wheel cannot declare: the preloaded hook, the simulated driver and the generated gRPC code.

The hook is a plain shared object: it is preloaded into any program, so it may not need libpython. The C code of the
region, which the agent uses through cffi, is compiled a second time for it. A part without sources in the tree is left
out.
"""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CC = shlex.split(os.environ.get("SHAREPOD_CC", "cc"))
CFLAGS = ["-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
LDFLAGS = ["-shared", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,defs", "-Wl,--as-needed"]
# The compiler may not turn the resolver's own loops into libc calls (a sanitizer's libc may not be ready when it runs),
# and initial-exec TLS costs nothing where the default model calls into the loader. An exported function begins with the
# instructions that save registers: programs that patch the driver's functions, such as UCX, can move only these.
HOOK_CFLAGS = ["-fno-builtin", "-ftls-model=initial-exec", "-fno-schedule-insns2", "-Wno-ignored-optimization-argument"]
LIBS = ["-lpthread", "-ldl"]
# Files of the simulator's model that only the simulated driver is linked with.
DRIVERS_ALONE = ("simgpu/model/project.c", "simgpu/model/truth.c")
# The hook's sources of the region; agent/build_native.py lists the agent's.
HOOK_REGION = [f"region/{part}.c" for part in ("region", "guard", "attach", "look")]
INCLUDES = ["-I.", "-Irig/c", "-Ibench/programs"]


def sources(*patterns: str, without: tuple[str, ...] = ()) -> list[str]:
    """Return the files that match, sorted, so that a build does not depend on the directory's order."""
    excluded = {path for pattern in without for path in Path().glob(pattern)}
    return [str(path) for path in sorted({p for pattern in patterns for p in Path().glob(pattern)} - excluded)]


class PlainSharedObject(Extension):
    """A shared library that has an exact file name and is never imported."""

    def __init__(self, name: str, library: str, sources: list[str], flags: list[str], depends: list[str]) -> None:
        super().__init__(name, sources=sources, depends=depends)
        self.library = library
        self.flags = flags


class BuildProto(Command):
    """Generate the gRPC code from the .proto files, with its type stubs."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = []  # type: ignore[misc]
    editable_mode = False

    def initialize_options(self) -> None:
        """Do nothing: there are no options."""

    def finalize_options(self) -> None:
        """Do nothing: there are no options."""

    def run(self) -> None:
        """Run protoc; ``-Isharepod/proto=proto`` makes the generated imports right without editing."""
        protos = sources("proto/*.proto")
        if not protos:
            return
        outputs = ["--python_out=.", "--grpc_python_out=.", "--mypy_out=quiet:.", "--mypy_grpc_out=quiet:."]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        names = [f"sharepod/{proto}" for proto in protos]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Isharepod/proto=proto", *outputs, *names]
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})

    def get_source_files(self) -> list[str]:
        """Return what goes into a source distribution."""
        return sources("proto/*.proto")

    def get_outputs(self) -> list[str]:
        """Return nothing: build_py finds the generated modules."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: build_py finds the generated modules."""
        return {}


class Build(build):
    """Generate code first, so that build_py finds it."""

    sub_commands: ClassVar = [("build_proto", None), *build.sub_commands]


class BuildExt(build_ext):
    """Build plain shared objects with the C compiler alone, everything else as usual."""

    failed: tuple[str, ...] = ()

    def run(self) -> None:
        """Build, but leave an editable install to ``make build``, which builds in place and again after each change."""
        if self.editable_mode:
            return
        super().run()
        if self.failed:
            raise SystemExit(f"not built: {', '.join(self.failed)}")

    def build_extensions(self) -> None:
        """Build every part even when one fails: a broken agent does not hide a broken hook."""
        built = []
        for extension in self.extensions:
            self.extensions = [extension]
            try:
                super().build_extensions()
                built.append(extension)
            except (CompileError, subprocess.CalledProcessError) as error:
                self.failed += (extension.name,)
                self.warn(str(error))
        self.extensions = built

    def copy_extensions_to_source(self) -> None:
        """Copy the built files into the tree, and link the names without a version to them.

        A wheel lacks these names: it cannot hold links, and a copy would be a second simulated driver.
        """
        super().copy_extensions_to_source()
        for extension in self.extensions:
            if isinstance(extension, PlainSharedObject) and extension.library.endswith(".so.1"):
                plain = Path(self.get_ext_fullpath(extension.name)).with_suffix("")
                plain.unlink(missing_ok=True)
                plain.symlink_to(extension.library)

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the built file; a plain shared object keeps its own name."""
        extension = getattr(self, "ext_map", {}).get(fullname)
        if isinstance(extension, PlainSharedObject):
            return str(Path(*fullname.split(".")[:-1]) / extension.library)
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        """Compile and link one extension, unless its output is newer than all it is made from."""
        if not isinstance(ext, PlainSharedObject):
            super().build_extension(ext)
            return
        output = Path(self.get_ext_fullpath(ext.name))
        inputs = [*ext.sources, *ext.depends, "setup.py"]
        if not self.force and output.exists() and output.stat().st_mtime > max(Path(p).stat().st_mtime for p in inputs):
            return
        output.parent.mkdir(parents=True, exist_ok=True)
        flags = [*CFLAGS, "-I.", *ext.flags, *shlex.split(os.environ.get("SHAREPOD_CFLAGS", ""))]
        subprocess.run([*CC, *flags, *LDFLAGS, "-o", str(output), *ext.sources, *LIBS], check=True)


LINTED = tuple(f"{room}/**/*.c" for room in ("region", "hook", "agent", "scheduler", "simgpu", "bench", "tests"))


class LintC(Command):
    """Compile every C source with the project's warnings as errors and keep nothing."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = []  # type: ignore[misc]

    def initialize_options(self) -> None:
        """Do nothing: there are no options."""

    def finalize_options(self) -> None:
        """Do nothing: there are no options."""

    def run(self) -> None:
        """Compile each source alone."""
        generated = ("agent/_native*.c", "scheduler/_native*.c")
        for source in sources(*LINTED, without=generated):
            flags = HOOK_CFLAGS if source.startswith(("hook/", "region/")) else []
            command = [*CC, *CFLAGS, *flags, "-Werror", *INCLUDES, "-c", "-o", "/dev/null", source]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(f"{source}: the compiler warns; see above")


def extensions() -> list[Extension]:
    """Return the shared objects that have their sources in the tree."""
    simgpu_depends = sources("driver/*.h", "driver/*.def", "simgpu/**/*.h", "simgpu/**/*.def", "simgpu/**/*.inc")
    hook_depends = sources("driver/*.h", "driver/*.def", "region/*.h", "hook/**/*.h")
    hook_flags = [*HOOK_CFLAGS, "-Wl,-soname,libsharepod.so"]
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
    nvml = sources("simgpu/nvml/*.c")
    parts = [
        PlainSharedObject(
            "sharepod.hook.libsharepod",
            "libsharepod.so",
            sources("hook/**/*.c", f"hook/interpose/trampoline_{machine}.S", *HOOK_REGION),
            hook_flags,
            hook_depends,
        ),
        PlainSharedObject(
            "sharepod.simgpu.lib.libcuda",
            "libcuda.so.1",
            sources("simgpu/**/*.c", without=("simgpu/nvml/*.c",)),
            # As in NVIDIA's library: its own calls and cuGetProcAddress use its own functions, also behind a hook.
            ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"],
            simgpu_depends,
        ),
        PlainSharedObject(
            "sharepod.simgpu.lib.libnvidia_ml",
            "libnvidia-ml.so.1",
            # Its own sources, and the sources of the state that it shares with the driver.
            [*nvml, *sources("simgpu/config/*.c", "simgpu/model/*.c", without=DRIVERS_ALONE)] if nvml else [],
            ["-Wl,-soname,libnvidia-ml.so.1", "-Wl,-Bsymbolic"],
            simgpu_depends,
        ),
    ]
    return [part for part in parts if part.sources]


NATIVE = [Path("agent/build_native.py"), Path("scheduler/build_native.py")]

setup(
    ext_modules=extensions(),
    cffi_modules=[f"{path}:ffi" for path in NATIVE if path.exists()],
    cmdclass={"build": Build, "build_ext": BuildExt, "build_proto": BuildProto, "lint_c": LintC},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
