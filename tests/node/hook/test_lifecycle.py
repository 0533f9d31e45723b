"""What the gate hears of captures, initialisation, keys and errors."""

import sys
import textwrap

from hooklab import PROBE, Lab, run


def execute(lab: Lab, body: str) -> None:
    """Run a script of assertions in a process under the test hook."""
    text = "from probe import *\n" + textwrap.dedent(body)
    done = run([sys.executable, "-c", text], lab.env(lab.hook, PYTHONPATH=PROBE))
    assert done.returncode == 0, done.stderr


def test_initialisation_attaches_only_after_the_driver_succeeded(lab: Lab) -> None:
    execute(
        lab,
        """
        seen("cuInit").result = 100
        assert cuda.cuInit(0) == 100 and log.attaches == 0
        seen("cuInit").result = 0
        assert cuda.cuInit(0) == 0 and log.attaches == 1
        attach_fails.value = 1
        assert cuda.cuInit(0) == 802
        """,
    )


def test_a_capture_ends_when_the_driver_says_so(lab: Lab) -> None:
    execute(
        lab,
        """
        graph = U64(0)
        begin, end = "cuStreamBeginCapture_v2", "cuStreamEndCapture"
        for result, ended in [(0, 1), (901, 1), (904, 1), (903, 0), (908, 0), (1, 0)]:
            seen(begin).result, seen(end).result = 0, result
            before = log.captures_ended
            assert cuda[begin](U64(0x9), 0) == 0 and log.captures_ended == before
            assert cuda[end](U64(0x9), byref(graph)) == result
            assert log.captures_ended - before == ended, result
        seen(begin).result = 401
        begun, ended = log.captures_begun, log.captures_ended
        assert cuda[begin](U64(0x9), 0) == 401
        assert (log.captures_begun - begun, log.captures_ended - ended) == (1, 1)
        """,
    )


def test_a_failed_call_is_neither_a_sync_nor_hidden_from_the_gate(lab: Lab) -> None:
    execute(
        lab,
        """
        seen("cuCtxSynchronize").result = 700
        assert cuda.cuCtxSynchronize() == 700 and log.synced == 0
        seen("cuGraphLaunch").result = 719
        assert cuda.cuGraphLaunch(U64(5), U64(6)) == 719
        assert (log.enters, log.leaves, log.left_with) == (1, 1, 719)
        """,
    )


def test_a_null_launch_configuration_is_the_drivers_to_refuse(lab: Lab) -> None:
    execute(
        lab,
        """
        seen("cuLaunchKernelEx").result = 1
        assert cuda.cuLaunchKernelEx(None, U64(1), None, None) == 1 and log.enters == 0
        """,
    )


def test_the_key_tells_functions_grids_and_sizes_apart(lab: Lab) -> None:
    execute(
        lab,
        """
        keys = set()
        def launch(f, grid, block):
            cuda.cuLaunchKernel(U64(f), *grid, *block, 0, U64(0), None, None)
            keys.add(log.key)
        shapes = [(1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2), (65535, 1, 1), (1, 65535, 1)]
        for f in (0x1000, 0x1008):
            for grid in shapes:
                for block in [(32, 1, 1), (1, 32, 1), (1, 1, 32)]:
                    launch(f, grid, block)
        assert len(keys) == 2 * len(shapes) * 3
        launch(0x1000, shapes[0], (32, 1, 1))
        assert len(keys) == 2 * len(shapes) * 3
        sizes = set()
        for size in (1 << 10, 1 << 11, 1 << 20, 1 << 30):
            cuda.cuMemsetD8Async(U64(1), 0, U64(size), U64(0)); sizes.add(log.key)
            cuda.cuMemsetD8Async(U64(1), 0, U64(size + size // 64), U64(0)); sizes.add(log.key)   # about as long
        assert len(sizes) == 4
        """,
    )


def test_errno_survives_a_gated_launch_and_an_allocation(lab: Lab) -> None:
    execute(
        lab,
        """
        ctypes.set_errno(77)
        assert cuda.cuGraphLaunch(U64(5), U64(6)) == 0 and alloc(10)[0] == 0 and cuda.cuInit(0) == 0
        assert ctypes.get_errno() == 77
        """,
    )
