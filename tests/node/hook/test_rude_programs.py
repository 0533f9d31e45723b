"""Test correct but rude programs: beside a neighbour they run as they would without the hook, and are billed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hooklab import C, compile_c, run
from metered import neighbour

from rig import REPO_ROOT
from rig.arbiter import Arbiter
from rig.control_groups import control_group
from rig.gpu import MakeSimgpu
from sharepod.agent.shares.diagnostics import Kind

GIB = 1 << 30


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that does all of this."""
    output = tmp_path_factory.mktemp("rude") / "rude_program"
    return compile_c(output, "-O2", f"-I{REPO_ROOT / 'rig' / 'c'}", C / "rude_program.c", "-lpthread", "-ldl")


@pytest.fixture
def beside(arbiter: Arbiter, make_simgpu: MakeSimgpu, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Keep a neighbour busy; yield the environment of a share with the other half of the device."""
    gpu = make_simgpu()
    other, share = (arbiter.share(tmp_path / name) for name in ("other", "share"))
    with neighbour(gpu, other):
        yield gpu.env | share.env


def test_a_thread_that_is_cancelled_while_it_launches_holds_up_nobody(program: Path, beside: Mapping[str, str]) -> None:
    done = run([program, "cancelled"], beside)
    assert done.returncode == 0, done
    assert int(done.stdout) > 20


@pytest.mark.parametrize("mode", ["closed", "replaced"])
def test_nothing_is_written_into_a_file_that_got_the_number_of_a_descriptor_of_ours(
    mode: str, program: Path, beside: Mapping[str, str], tmp_path: Path
) -> None:
    done = run([program, mode, tmp_path / "own"], beside)
    assert (done.returncode, done.stdout) == (0, "nothing was written\n"), done.stderr
    assert (tmp_path / "own").read_bytes() == b""


def test_without_its_helper_thread_a_program_runs_on_and_is_metered_when_it_can_be(
    program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    with control_group("pids", needs="pids.max") as group:
        joined = f"echo $$ > {group}/cgroup.procs; exec {program} alone {group}/pids.max"
        done = run(["sh", "-c", joined], simgpu | share.env)
    assert done.returncode == 0, done.stderr
    without, metered = map(int, done.stdout.split())
    assert without > 800  # about 3,000 are possible, but other tests use the cores too
    usage = share.usage()
    assert usage.passed >= without
    assert 0 < usage.launches <= metered
    assert usage.used_ns < metered * 700_000
    told = {diagnostic.kind for diagnostic in arbiter.native.read_diagnostics(share.handle)}
    assert Kind.KEEPER in told


def test_while_a_helper_thread_is_being_started_no_other_thread_takes_it_for_running(
    program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    library = compile_c(tmp_path / "no_helpers.so", "-shared", "-fPIC", C / "helper_start.c", "-ldl")
    done = run([program, "together"], simgpu | share.env | {"LD_PRELOAD": f"{share.env['LD_PRELOAD']}:{library}"})
    assert done.returncode == 0, done.stderr
    assert (share.usage().launches, share.usage().passed) == (0, 200), "a turn that is entered now would never end"


@pytest.mark.parametrize("kib", [200, 250, 400, 3000])
def test_a_program_with_large_thread_local_variables_is_metered(
    kib: int, program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    (tmp_path / "large.c").write_text(f"__thread char large[{kib} * 1024]; char *at(void) {{ return large; }}")
    library = compile_c(tmp_path / "large.so", "-shared", "-fPIC", tmp_path / "large.c")
    preload = {"LD_PRELOAD": f"{share.env['LD_PRELOAD']}:{library}"}
    done = run([program, "together"], simgpu | share.env | preload)
    assert done.returncode == 0, done.stderr
    assert share.usage().launches > 100
    assert not arbiter.native.read_diagnostics(share.handle), "it has no helper thread"


def test_memory_that_is_free_is_granted_while_others_of_the_share_ask_for_more_than_its_cap(
    program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share", memory_bytes=1 << 30)
    done = run([program, "beside_too_much"], simgpu | share.env)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("becomes", "1"), "three generations\n"), (("ends_first",), "the other has ended\n")],
    ids=["its-old-image-s-memory-is-free-after-exec", "it-ends-when-its-last-thread-does"],
)
def test_what_a_program_does_with_itself_it_may_do_in_a_share(
    arguments: tuple[str, ...], said: str, program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share", memory_bytes=GIB)
    done = run([program, *arguments], simgpu | share.env)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_a_release_that_is_not_the_last_does_not_wait_for_the_device(
    program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    done = run([program, "releases"], simgpu | share.env)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 5_000_000  # a wait for the 40 kernels in flight of 0.5 ms would take longer


def test_who_releases_a_full_stream_that_waits_is_not_held_up_by_it(program: Path, beside: Mapping[str, str]) -> None:
    done = run([program, "full"], beside)
    assert (done.returncode, done.stdout) == (0, "released\n"), done.stderr


@pytest.mark.parametrize("of", [(), ("known",)], ids=["kernels-never-seen", "long-kernels-seen-before"])
def test_who_launches_before_it_writes_the_word_that_its_work_waits_for_is_let_through(
    of: tuple[str, ...], program: Path, arbiter: Arbiter, simgpu: dict[str, str], tmp_path: Path
) -> None:
    share = arbiter.share(tmp_path / "share")
    done = run([program, "behind", *of], simgpu | share.env)
    assert done.returncode == 0, done.stderr
    *waited_ms, unit = done.stdout.split()
    assert unit == "ms"
    assert len(waited_ms) == 9
    assert max(map(int, waited_ms)) < 400, waited_ms
