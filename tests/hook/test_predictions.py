"""How long a graph or a kernel will take is learned, and learned anew when it has changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hooklab import compile_c, run
from metered import run_metered

from sharepod.hook import LIBRARY

if TYPE_CHECKING:
    from rig.gpu import MakeSimgpu


def predictions(body: str) -> str:
    """Return a program that can read what the hook predicts of an executable graph, in microseconds."""
    symbols = [line.split() for line in run(["nm", LIBRARY]).stdout.splitlines()]
    offset = next(int(symbol[0], 16) for symbol in symbols if symbol[-1] == "sp_unit_find")
    return f"""
from rig.graphs import *
maps = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith({LIBRARY.name!r})]
find = ctypes.CFUNCTYPE(c_void_p, c_uint64)(int(maps[0][0].split("-")[0], 16) + {offset})
def predicted(executable):
    row = find((executable.value * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) | 1)
    return c_uint32.from_address(row + 8).value / 1000
def learned(executable):
    deadline_s = time.monotonic() + 2  # the keeper learns when it has seen the end
    while predicted(executable) == 0 and time.monotonic() < deadline_s:
        time.sleep(0.001)
    time.sleep(0.02)  # there may be a second marker
    return predicted(executable)
module, stream, other = start(), new_stream(), new_stream()
def made(name):
    graph = new_graph()
    return graph, add_kernel(graph, module, name)
def launches(executable, count):
    for _ in range(count):
        ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))
    return learned(executable)
{body}
"""


CHANGES = {
    "update": "ok(cuda.cuGraphExecUpdate_v2(executable, made(NAME)[0], byref(Updated())))",
    "old update": "ok(cuda.cuGraphExecUpdate(executable, made(NAME)[0], byref(c_void_p()), byref(c_int())))",
    "node": "ok(cuda.cuGraphExecKernelNodeSetParams_v2(executable, node, byref(kernel_params(module, NAME))))",
    "old node": "ok(cuda.cuGraphExecKernelNodeSetParams(executable, node, byref(kernel_params(module, NAME))))",
    "any node": """params = Params(type=KERNEL, of=Anything(kernel=kernel_params(module, NAME)))
ok(cuda.cuGraphExecNodeSetParams(executable, node, byref(params)))""",
    "another at its address": """was = executable.value
ok(cuda.cuGraphExecDestroy(executable))
graph, node = made(NAME)
executable = instantiate(graph)
assert executable.value == was
assert predicted(executable) == 0""",
}


def test_the_duration_of_a_changed_graph_is_learned_at_its_next_launch(make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    body = "".join(
        f"""
graph, node = made("short_100us")
executable = instantiate(graph)
print(launches(executable, 20))
NAME = "long_5ms"
{change}
print(launches(executable, 2))
NAME = "short_300us"
ok(cuda.cuGraphLaunch(executable, stream))
{change}
print(launches(executable, 2))
"""
        for change in CHANGES.values()
    )
    told_us = run_metered(make_simgpu(), tmp_path, predictions(body)).stdout.split()
    for change, *found in zip(CHANGES, told_us[::3], told_us[1::3], told_us[2::3], strict=True):
        for line, truth_us in zip(found, (100, 5000, 300), strict=True):
            assert float(line) == pytest.approx(truth_us, rel=0.1, abs=50), change


def exported_predictions(tmp_path: Path) -> str:
    """Compile the predictions; return Python text that defines `learn` and `predicted` by key."""
    hook = Path(__file__).resolve().parents[2] / "hook"
    source = tmp_path / "exported.c"
    source.write_text('#include "predict.c"\n')
    library = compile_c(
        tmp_path / "libpredict.so", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=default", f"-I{hook}", source
    )
    return f"""
import ctypes
from ctypes import c_bool, c_uint8, c_uint32, c_uint64, c_void_p
predict = ctypes.CDLL({str(library)!r})
predict.sp_unit_find.restype = c_void_p
def row(key):
    return predict.sp_unit_find(c_uint64(key))
def predicted(key):
    return c_uint32.from_address(row(key) + 8).value
def learn(key, version, ns, exact=True):
    unit, launches = c_void_p(row(key)), c_uint32(1)
    predict.sp_unit_learn(unit, c_uint8(version), launches, c_uint64(ns), c_bool(exact))
"""


def test_what_was_in_flight_when_a_unit_changed_is_not_learned_as_the_new_one(tmp_path: Path) -> None:
    text = f"""{exported_predictions(tmp_path)}
for key in range(1, 100, 2):
    learn(key, 0, 1000)
predict.sp_unit_changed(c_uint64(5), c_bool(False))
learn(5, 0, 900)
print(predicted(5))
learn(5, 2, 8000)
print(predicted(5))
learn(5, 2, 16000)
print(predicted(5))
predict.sp_unit_changed(c_uint64(7), c_bool(True))
learn(7, 0, 900)
print(predicted(7), predicted(9))
learn(7, 2, 500)
predict.sp_unit_changed(c_uint64(1001), c_bool(True))
print(predicted(7))
"""
    assert run([sys.executable, "-c", text]).stdout.split() == ["1000", "8000", "9000", "0", "1000", "500"]


def test_a_changed_unit_is_no_longer_known_exactly(tmp_path: Path) -> None:
    text = f"""{exported_predictions(tmp_path)}
learn(5, 0, 1000, exact=True)
learn(5, 0, 1800, exact=False)
print(predicted(5))
predict.sp_unit_changed(c_uint64(5), c_bool(False))
learn(5, 2, 3000, exact=False)
learn(5, 2, 5000, exact=False)
print(predicted(5))
learn(5, 2, 2000, exact=True)
print(predicted(5))
learn(5, 2, 1800, exact=True)
print(predicted(5))
learn(5, 2, 1700, exact=False)
learn(5, 2, 2600, exact=True)
print(predicted(5))
"""
    # An upper bound lowers what is known and never raises it; the first exact length replaces it, others are averaged.
    assert run([sys.executable, "-c", text]).stdout.split() == ["1000", "3000", "2000", "1900", "1900"]
