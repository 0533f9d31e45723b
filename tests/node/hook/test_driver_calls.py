"""Test that the hook calls the driver under no lock for which another of its threads may wait.

A full stream makes such a call wait, and the thread that would let the stream go on then waits for the lock.
"""

from pathlib import Path

import pytest
from every_symbol import EVERY, Node
from hooklab import STRICT, C, compile_c, run
from metered import neighbour

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.gpu import LIBRARIES, MakeSimgpu
from sharepod.hook import LIBRARY


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = [*STRICT, "-fvisibility=default", "-shared"]
    return compile_c(tmp_path_factory.mktemp("audit") / "audit.so", *flags, C / "lock_audit.c", "-ldl")


def test_no_call_of_any_wrapper_reaches_the_driver_under_a_lock(node: Node, audit: Path, tmp_path: Path) -> None:
    program, found = compile_c(tmp_path / "every", *EVERY), tmp_path / "found"
    node.check_run(program, "soname", preload=(audit, LIBRARY), env={"LOCK_AUDIT": str(found)})
    assert not found.exists(), found.read_text()


CALLER = """
#include <pthread.h>
int cuInit(unsigned flags);
static pthread_mutex_t waited_for = PTHREAD_MUTEX_INITIALIZER, tried = PTHREAD_MUTEX_INITIALIZER;
int main(int count, char **arguments) {
  (void)arguments;
  if (count > 1)
    pthread_mutex_lock(&waited_for);
  else
    pthread_mutex_trylock(&tried);
  return cuInit(0);
}
"""


@pytest.mark.parametrize("waits", [True, False])
def test_the_audit_finds_such_a_call(audit: Path, simgpu: dict[str, str], tmp_path: Path, waits: bool) -> None:
    source, found = tmp_path / "caller.c", tmp_path / "found"
    source.write_text(CALLER)
    driver = [f"-L{LIBRARIES}", "-l:libcuda.so.1"]
    caller = compile_c(tmp_path / "libsharepod-caller", "-rdynamic", source, *driver)  # the audit takes it for the hook
    done = run([caller, *["waits"] * waits], simgpu | {"LD_PRELOAD": str(audit), "LOCK_AUDIT": str(found)})
    assert done.returncode == 0, done.stderr
    assert found.exists() == waits
    assert not waits or "(cuInit+" in found.read_text()


@pytest.fixture(scope="module")
def rude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("rude") / "rude_program"
    return compile_c(output, "-O2", f"-I{REPO_ROOT / 'rig' / 'c'}", C / "rude_program.c", "-lpthread", "-ldl")


@pytest.mark.parametrize("mode", ["full", "cancelled", "releases", "behind"])
def test_no_launch_reaches_the_driver_under_a_lock(
    mode: str, rude: Path, audit: Path, arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    gpu, found = make_simgpu(), tmp_path / "found"
    other, share = (arbiter.share(tmp_path / name) for name in ("other", "share"))
    audited = {"LD_PRELOAD": f"{audit}:{LIBRARY}", "LOCK_AUDIT": str(found)}
    with neighbour(gpu, other):
        done = run([rude, mode], gpu.env | share.env | audited)
    assert done.returncode == 0, done.stderr
    assert not found.exists(), found.read_text()
