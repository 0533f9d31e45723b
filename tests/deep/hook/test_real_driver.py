"""Test on NVIDIA's own libraries that under the hook each name has the right address; this needs no GPU.

The libraries come from the system, or are unpacked from Debian's non-free component during the test. They are used here
and never shipped.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hooklab import STRICT, C, clean_environment, compile_c, read_nvml_symbols, read_symbols, run

from rig import REPO_ROOT
from sharepod.driver.coverage import read_functions
from sharepod.hook import LIBRARY

HOOKED = {symbol.name for symbol in read_symbols()}
VARIANT = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


def unpack_from_debian(directory: Path, package: str, library: str) -> Path | None:
    """Fetch and unpack a library from the non-free part of apt's Debian mirror, without changing apt's settings."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    fields = "$(SITE) $(CODENAME) $(ORIGIN)"
    targets = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]).stdout.split("\n")
    debian = [line.split() for line in targets if line.endswith(" Debian") and "-" not in line.split()[1]]
    if not debian:
        return None
    site, codename, _ = debian[0]
    (directory / "lists" / "partial").mkdir(parents=True)
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (directory / "sources.list").write_text(f"deb [signed-by={key}] {site} {codename} non-free\n")
    options = {
        "Dir::Etc::sourcelist": f"{directory}/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": f"{directory}/lists",
        "APT::Sandbox::User": "root",
    }
    own = [f"--option={name}={value}" for name, value in options.items()]
    for command in (["update"], ["download", package]):
        try:
            subprocess.run(
                ["apt-get", "-q", *own, *command], cwd=directory, check=True, capture_output=True, timeout=60
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
    packages = list(directory.glob(f"{package}_*.deb"))
    if not packages or run(["dpkg-deb", "-x", packages[0], directory / "tree"]).returncode != 0:
        return None
    return next((path for path in (directory / "tree").rglob(f"{library}.*") if not path.is_symlink()), None)


def real_library(directory: Path, library: str, package: str) -> Path:
    """Return the path of one of NVIDIA's libraries, whatever its version."""
    installed = [*sorted(Path("/usr/lib").glob(f"*-linux-gnu/{library}.1")), Path(f"/usr/lib64/{library}.1")]
    for path in installed:
        if path.exists():
            return path.resolve()
    found = unpack_from_debian(directory, package, library)
    if found is None:
        pytest.skip(f"NVIDIA's {library}.1 is not here and cannot be fetched (Debian non-free package {package})")
    return found


@pytest.fixture(scope="module")
def real_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of NVIDIA's libcuda."""
    return real_library(tmp_path_factory.mktemp("nonfree"), "libcuda.so", "libcuda1")


@pytest.fixture(scope="module")
def real_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of NVIDIA's libnvidia-ml."""
    return real_library(tmp_path_factory.mktemp("nonfree"), "libnvidia-ml.so", "libnvidia-ml1")


def answers(
    program: Path, driver: Path, names: set[str], env: dict[str, str]
) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return the library and offset of each answer by (how, name, version, flags)."""
    done = subprocess.run(
        [program, driver],
        input="\n".join(sorted(names)),
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines.pop()[0] == "cuInit"
    return {tuple(line[:4]): (line[4], line[5]) for line in lines}


def exports(driver: Path) -> set[str]:
    """Return the functions that a driver's library exports."""
    listing = run(["nm", "--dynamic", "--defined-only", driver]).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in listing if line.split()[-2] in "TW"}


def check_every_address(directory: Path, driver: Path, env: dict[str, str]) -> None:
    """Compare every answer with and without the hook: both are the same, or the hook gives that export's wrapper."""
    program = compile_c(directory / "exports", *STRICT, C / "exports.c", "-ldl")
    exported = exports(driver)
    names = exported | {VARIANT.sub("", name) for name in exported}
    plain = answers(program, driver, names, env)
    hooked = answers(program, driver, names, env | {"LD_PRELOAD": str(LIBRARY)})
    assert hooked.keys() == plain.keys()
    name_at = {where: question[1] for question, where in plain.items() if question[0] == "dlsym" and where[0] != "-"}
    wrapper_of = {name: hooked["dlsym", name, "0", "0"] for name in HOOKED & exported}
    # Each function has a wrapper of its own; names of the same function (the simulated driver has some) share one.
    assert len(set(wrapper_of.values())) == len({plain["dlsym", name, "0", "0"] for name in wrapper_of})
    assert {library for library, _ in wrapper_of.values()} == {LIBRARY.name}
    # A driver that is not linked with its own symbols first hands out what its names resolve to: the hook's exports.
    listing = run(["nm", "--dynamic", "--defined-only", LIBRARY]).stdout.split("\n")
    door_of = {line.split()[2]: (LIBRARY.name, f"{int(line.split()[0], 16):x}") for line in listing if " T cu" in line}
    replaced = 0
    for question, where in plain.items():
        name = name_at.get(where)
        if name in HOOKED:
            assert hooked[question] in (wrapper_of[name], door_of[name]), question
            replaced += 1
        else:
            assert hooked[question] == where, question
    assert replaced > 20 * len(set(wrapper_of.values()))


def test_every_address_of_the_real_driver_is_exact(tmp_path: Path, real_driver: Path) -> None:
    exported = exports(real_driver)
    assert len(exported) > 500
    assert len(HOOKED & exported) > 80
    check_every_address(tmp_path, real_driver, clean_environment())


def test_every_address_of_the_simulated_driver_is_exact(tmp_path: Path, simgpu: dict[str, str]) -> None:
    driver = Path(simgpu["LD_LIBRARY_PATH"]) / "libcuda.so.1"
    assert exports(driver) >= {"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuGraphLaunch", "cuMemAlloc_v2"}
    check_every_address(tmp_path, driver, simgpu)


def driver_version(driver: Path) -> int:
    """Return the CUDA version of a driver."""
    script = (
        "import ctypes, sys; version = ctypes.c_int()\n"
        "ctypes.CDLL(sys.argv[1]).cuDriverGetVersion(ctypes.byref(version)); print(version.value)"
    )
    return int(run([sys.executable, "-c", script, driver], clean_environment()).stdout)


ADDRESSES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
at = [ctypes.cast(library[name], ctypes.c_void_p).value for name in sys.stdin.read().split()]
print([address - at[0] for address in at])
"""


def test_the_management_library_is_left_as_it_is_but_for_the_table(real_nvml: Path) -> None:
    ours = {*read_nvml_symbols()}
    later = {"nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetHandleByUUIDV"}
    assert ours - exports(real_nvml) <= later

    def addresses(env: dict[str, str], names: set[str]) -> list[int]:
        command = [sys.executable, "-c", ADDRESSES, str(real_nvml)]
        text = "\n".join(["nvmlInit_v2", *sorted(names)])
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=env, timeout=60, check=True)
        found: list[int] = json.loads(done.stdout)
        return found[1:]

    hooked = clean_environment() | {"LD_PRELOAD": str(LIBRARY)}
    others = exports(real_nvml) - ours
    assert len(others) > 200
    assert addresses(hooked, others) == addresses(clean_environment(), others)
    there = ours & exports(real_nvml)
    before, after = addresses(clean_environment(), there), addresses(hooked, there)
    assert [one for one, other in zip(before, after, strict=True) if one == other] == []


CALLS = """
import ctypes, sys
library, number = ctypes.CDLL(sys.argv[1]), ctypes.c_uint(0)
print([library[name](None, ctypes.byref(number), None, 0) for name in sys.stdin.read().split()])
"""


def test_the_management_librarys_own_refusals_come_through(real_nvml: Path) -> None:
    names = "\n".join(sorted({*read_nvml_symbols()} & exports(real_nvml)))
    command = [sys.executable, "-c", CALLS, str(real_nvml)]

    def answers(env: dict[str, str]) -> str:
        return subprocess.run(command, input=names, capture_output=True, text=True, env=env, check=True).stdout

    assert answers(clean_environment() | {"LD_PRELOAD": str(LIBRARY)}) == answers(clean_environment())


def test_the_simulated_libraries_export_what_the_real_ones_do(real_driver: Path, real_nvml: Path) -> None:
    simgpu = REPO_ROOT / "simgpu"
    since = {function.name: function.since for function in read_functions()}
    real, simulated = exports(real_driver), exports(simgpu / "lib" / "libcuda.so.1")
    version = driver_version(real_driver)
    assert [name for name in sorted(simulated - real) if name.startswith("cu") and since[name] <= version] == []
    assert [name for name in sorted(real - simulated) if name.startswith("cu")] == []
    assert sorted(exports(real_nvml) - exports(simgpu / "lib" / "libnvidia-ml.so.1")) == []
