"""Test every wrapped symbol with valid arguments, by every route and beside other preloaded libraries."""

import ctypes.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from every_symbol import SYMBOLS, Node, Programs
from hooklab import STRICT, C, compile_c

from sharepod.hook import LIBRARY

NOT_SIMULATED = {
    *("cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"),
    *("cuDeviceTotalMem", "cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo"),
    *("cuMemcpyAtoD", "cuMemcpyDtoA", "cuMemcpyDtoD", "cuMemcpyDtoDAsync", "cuMemcpyDtoH", "cuMemcpyHtoD"),
    *("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"),
    *("cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy2DUnaligned", "cuMemcpy3D", "cuMemcpy3DAsync"),
    *("cuMemsetD8", "cuMemsetD16", "cuMemsetD32", "cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32"),
    *("cuFabricCpyBatchAsync", "cuFabricCpyBatchAsync_ptsz"),
    *("cuMemBatchDecompressAsync", "cuMemBatchDecompressAsync_ptsz"),
    *("cuStreamBeginRecaptureToGraph", "cuStreamBeginRecaptureToGraph_ptsz"),
    *("cuLaunchHostFunc_v2", "cuLaunchHostFunc_v2_ptsz"),
    *("cuGraphAddNode_v3", "cuGreenCtxDestroy"),
}
"""The functions that the simulated driver has no model of, such as contexts of graphics APIs and the forms of CUDA 2
with 32-bit addresses. A function that is added to the hook's table must be simulated or listed here."""
ROUTES = (
    "linked", "default", "soname", "path", "soname-deepbind", "path-deepbind", "gpa1", "gpa2", "gpa2-legacy", "runtime",
    "plugin linked", "plugin soname", "plugin gpa2",
)  # fmt: skip
"""How the program gets a function's address, see every.c; `plugin`: in a plugin that is opened with RTLD_DEEPBIND."""
DEBIAN = {"jemalloc": "libjemalloc2", "tcmalloc_minimal": "libtcmalloc-minimal4"}
"""Other allocators, and the packages that hold them."""


def check_route(
    node: Node,
    programs: Programs,
    route: str,
    *,
    preload: Sequence[str | Path] = (LIBRARY,),
    metered: bool = True,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run the program by one route in a share; return what it wrote to stderr."""
    where, _, way = route.rpartition(" ")
    plugin = {"PLUGIN": str(programs.plugin)} if where == "plugin" else {}
    program = programs.linked if route == "linked" else programs.unlinked
    return node.check_run(program, way, preload=preload, metered=metered, env={**plugin, **(env or {})})


def test_every_symbol_answers_as_ever_and_is_metered_by_every_route(node: Node, programs: Programs) -> None:
    for route in ROUTES:
        check_route(node, programs, route)


def test_the_calls_are_valid_and_what_they_want_done_is_done(node: Node) -> None:
    answers = {name: result for name, result, _ in (answer.split() for answer in node.answers)}
    assert set(answers) == {symbol.name for symbol in SYMBOLS}, "add a line to tests/support/hook/c/valid.def"
    results = {name: int(result) for name, result in answers.items()}
    for name, result in results.items():
        assert result == (801 if name in NOT_SIMULATED else 0), name
    launches = [s for s in SYMBOLS if s.action in {"LAUNCH", "COPY", "PASS"} and results.get(s.name) == 0]
    assert len(node.work) == len(launches) > 50
    assert {"unit_20us", "graph", "memset", "memcpy"} == set(node.work)


@pytest.mark.parametrize(("setting", "metered"), [("1", False), ("0", True)])
def test_a_plugin_goes_past_the_hook_only_where_the_program_keeps_deepbind(
    node: Node, programs: Programs, setting: str, metered: bool
) -> None:
    env = {"SHAREPOD_KEEP_DEEPBIND": setting}
    check_route(node, programs, "plugin linked", env=env, metered=metered)


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds a tool to preload."""
    directory = tmp_path_factory.mktemp("tools")
    return lambda name: compile_c(directory / f"{name}.so", *STRICT, "-shared", C / f"{name}.c", "-ldl")


@pytest.mark.parametrize("route", ["linked", "gpa2"])
def test_a_tool_that_wraps_functions_of_the_driver_keeps_its_place(
    node: Node, programs: Programs, tool: Callable[[str], Path], route: str
) -> None:
    third = tool("third")
    alone = check_route(node, programs, route, preload=[third], metered=False)
    assert alone == ("third: 1 launches, 1 waits\n" if route == "linked" else "third: 0 launches, 0 waits\n")
    for preload in ([LIBRARY, third], [third, LIBRARY]):
        assert check_route(node, programs, route, preload=preload) == alone


@pytest.mark.parametrize(
    ("hook_first", "route"),
    [(True, "soname"), (True, "gpa2"), (True, "plugin linked"), (False, "soname"), (False, "gpa2")],
)
def test_a_tool_that_wraps_the_loader_itself_keeps_its_place(
    node: Node, programs: Programs, tool: Callable[[str], Path], hook_first: bool, route: str
) -> None:
    loader = tool("loadertool")
    preload = [LIBRARY, loader] if hook_first else [loader, LIBRARY]
    # A tool before ours that gets libc's own dlsym by dlvsym bypasses every preloaded library, ours too.
    assert check_route(node, programs, route, preload=preload, metered=hook_first) == "tool: opened and looked up\n"


@pytest.mark.parametrize("hook_first", [True, False])
@pytest.mark.parametrize("allocator", DEBIAN)
def test_another_allocator_and_the_hook_live_together(
    node: Node, programs: Programs, allocator: str, hook_first: bool
) -> None:
    found = ctypes.util.find_library(allocator)
    if found is None:
        pytest.skip(f"lib{allocator} is needed: apt install {DEBIAN[allocator]}")
    preload = [LIBRARY, found] if hook_first else [found, LIBRARY]
    assert check_route(node, programs, "soname", preload=preload) == ""
