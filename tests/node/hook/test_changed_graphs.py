"""Test that the length of a changed executable graph is learned anew, as shown by how many are in flight."""

from pathlib import Path

import pytest
from metered import most_in_flight, run_metered

from rig.gpu import MakeSimgpu
from sharepod.simgpu.truth import Truth

CHANGES = {
    "update": "ok(cuda.cuGraphExecUpdate_v2(executable, made(LONG)[0], byref(Updated())))",
    "old update": "ok(cuda.cuGraphExecUpdate(executable, made(LONG)[0], byref(c_void_p()), byref(c_int())))",
    "node": "ok(cuda.cuGraphExecKernelNodeSetParams_v2(executable, node, byref(kernel_params(module, LONG))))",
    "old node": "ok(cuda.cuGraphExecKernelNodeSetParams(executable, node, byref(kernel_params(module, LONG))))",
    "any node": """params = Params(type=KERNEL, of=Anything(kernel=kernel_params(module, LONG)))
ok(cuda.cuGraphExecNodeSetParams(executable, node, byref(params)))""",
    "another at its address": """was = executable.value
ok(cuda.cuGraphExecDestroy(executable))
executable = instantiate(made(LONG)[0])
assert executable.value == was""",
}
LAUNCHES = 40
LONG_NS = 5_000_000
AT_ONCE = 50_000_000 // LONG_NS
"""How many long graphs may be in flight by the budget of a share that is alone on its device."""


def program(change: str) -> str:
    """Return a program that launches a short graph, changes it to a long one, and launches that."""
    return f"""
from rig.graphs import *
module, stream, LONG = start(), new_stream(), "long_5ms"
def made(name):
    graph = new_graph()
    return graph, add_kernel(graph, module, name)
def launches(count):
    for _ in range(count):
        ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))
    time.sleep(0.05)  # the keeper has learned
graph, node = made("short_100us")
executable = instantiate(graph)
launches(100)
ok(cuda.cuGraphLaunch(executable, stream))  # in flight when the graph changes: it is not learned as the new one
{change}
launches(2)
launches({LAUNCHES})
"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_that_has_become_longer_is_not_taken_for_the_short_one(
    make_simgpu: MakeSimgpu, tmp_path: Path, change: str
) -> None:
    gpu = make_simgpu(SIMGPU_LOG_KERNELS="1000")
    run_metered(gpu, tmp_path, program(CHANGES[change]))
    with Truth(gpu.state) as truth:
        graphs = [work for work in truth.kernels(0) if work.busy_ns > LONG_NS // 2]
    assert len(graphs) == LAUNCHES + 2
    assert 1 < most_in_flight(graphs) <= 2 * AT_ONCE
