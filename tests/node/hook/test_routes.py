"""Every wrapped symbol, by every way that a program has to the driver, reaches the gate once and the driver once."""

from pathlib import Path

import pytest
from hooklab import STRICT, C, Lab, Symbol, compile_c, read_symbols, run

SYMBOLS = read_symbols()
LAZY = ["-Wl,-z,lazy", "-fplt"]
NOW = ["-Wl,-z,now", "-fno-plt"]


@pytest.fixture(scope="module")
def programs(lab: Lab) -> dict[str, Path]:
    """Build the program and the plugin, linked in each way."""
    link: list[str | Path] = ["-L", lab.driver.parent, "-lcuda"]
    source = C / "routes.c"
    program: list[str | Path] = [*STRICT, "-DPROGRAM", source, "-ldl"]
    plugin: list[str | Path] = [*STRICT, "-DLINKED", "-shared", source]
    return {
        "lazy": compile_c(lab.directory / "routes-lazy", *program, "-DLINKED", *LAZY, *link),
        "now": compile_c(lab.directory / "routes-now", *program, "-DLINKED", *NOW, *link),
        "unlinked": compile_c(lab.directory / "routes-unlinked", *program),
        "plugin-lazy": compile_c(lab.directory / "plugin-lazy.so", *plugin, *LAZY, *link),
        "plugin-now": compile_c(lab.directory / "plugin-now.so", *plugin, *NOW, *link),
    }


@pytest.fixture(scope="module")
def third(lab: Lab) -> Path:
    """Build a tool that interposes on one launch and one allocation and chains with RTLD_NEXT."""
    return compile_c(lab.directory / "libthird.so", *STRICT, "-shared", C / "third.c", "-ldl")


COUNTERS = (
    "enters", "leaves", "synced", "begun", "ended", "streams", "contexts", "attaches", "changes", "units", "to_device",
    "to_host",
)  # fmt: skip
# What the gate hears of a symbol whose name begins so.
HEARD_OF = {
    "cuInit": "attaches",
    "cuCtxDe": "contexts",
    "cuDevicePrimaryCtxRel": "contexts",
    "cuDevicePrimaryCtxRes": "contexts",
    "cuGreenCtxDe": "contexts",
    "cuCtxCreate": "changes",
    "cuGLCtxCreate": "changes",
    "cuVDPAUCtxCreate": "changes",
    "cuCtxSet": "changes",
    "cuCtxPush": "changes",
    "cuCtxPop": "changes",
    "cuStreamDestroy": "streams",
    "cuStreamBeginCapture": "begun",
    "cuStreamBeginRecapture": "begun",
    "cuStreamEndCapture": "ended",
}


def expected(symbol: Symbol, *, through_gate: bool) -> list[str]:
    """Return the line that routes.c must print for a symbol."""
    count = dict.fromkeys(COUNTERS, 0)
    per_thread, stream = 0, 0
    signature = SIGNATURES[symbol.name]
    if through_gate:
        if symbol.action in {"LAUNCH", "COPY"}:  # the copies of routes.c are inside a device
            count["enters"] = count["leaves"] = 1
        elif symbol.action == "SYNC":
            count["synced"] = 1
        elif symbol.action == "CHANGE" or symbol.name == "cuGraphExecDestroy":
            count["units"] = 1
        else:
            count |= {counter: 1 for begin, counter in HEARD_OF.items() if symbol.name.startswith(begin)}
        if symbol.action in {"SYNC", "COUNT"} and symbol.name.startswith("cuMemcpy"):
            count["to_device" if symbol.name.startswith("cuMemcpyHto") else "to_host"] = 1
        if count["enters"] == 1 or count["begun"] or count["ended"]:
            per_thread = int(symbol.per_thread)
        if (count["enters"] or count["begun"] or count["ended"] or count["streams"]) and "s" in signature:
            stream = 0x5000 + signature.index("s")
        if symbol.name.startswith("cuLaunchKernelEx"):
            stream = 0x5000
    result = 500 if symbol.action == "LOOKUP" else 0  # it was asked for a name that nobody has
    # To learn the handle of a primary context the hook retains it, and releases it once itself.
    calls = "2" if through_gate and symbol.name == "cuDevicePrimaryCtxRelease_v2" else "1"
    return [symbol.name, calls, "1", str(result), *map(str, count.values()), str(per_thread), str(stream)]


def read_signatures() -> dict[str, str]:
    """Return the parameter letters of calls.def."""
    lines = (C / "calls.def").read_text().splitlines()
    calls = [line.removeprefix("CALL(").rstrip(")").split(", ") for line in lines if line.startswith("CALL(")]
    return {name: letters.strip('"') for name, letters in calls}


SIGNATURES = read_signatures()

# program, route: what reaches the gate; tables of reference texts call this the bypass matrix
ROUTES = [
    ("lazy", "linked"),
    ("now", "linked"),
    ("lazy", "default"),
    ("unlinked", "soname"),
    ("unlinked", "path"),
    ("unlinked", "soname-deepbind"),
    ("unlinked", "path-deepbind"),
    ("unlinked", "gpa1"),
    ("unlinked", "gpa2"),
    ("unlinked", "gpaself"),
    ("unlinked", "gpa2-path"),
    ("unlinked", "plugin-lazy:linked"),
    ("unlinked", "plugin-now:linked"),
    ("unlinked", "plugin-lazy:soname"),
    ("unlinked", "plugin-lazy:gpa2"),
]


def routes(lab: Lab, programs: dict[str, Path], program: str, route: str, *preload: Path, **extra: str) -> list[str]:
    """Run one route and return the lines it printed."""
    if ":" in route:
        plugin, route = route.split(":")
        extra["PLUGIN"] = str(programs[plugin])
        route = f"plugin:{route}"
    done = run([programs[program], route], lab.env(*preload, **extra))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("program", "route"), ROUTES)
def test_every_symbol_passes_the_gate_by_every_route(
    lab: Lab, programs: dict[str, Path], program: str, route: str
) -> None:
    lines = [line.split() for line in routes(lab, programs, program, route, lab.hook)]
    assert lines == [expected(symbol, through_gate=True) for symbol in SYMBOLS]


def test_the_laboratory_tells_a_bypass_from_a_hit(lab: Lab, programs: dict[str, Path]) -> None:
    lines = [line.split() for line in routes(lab, programs, "unlinked", "soname")]
    assert lines == [expected(symbol, through_gate=False) for symbol in SYMBOLS]


def test_the_deepbind_escape_restores_the_programs_flags(lab: Lab, programs: dict[str, Path]) -> None:
    kept = routes(lab, programs, "unlinked", "plugin-lazy:linked", lab.hook, SHAREPOD_KEEP_DEEPBIND="1")
    assert [line.split() for line in kept] == [expected(symbol, through_gate=False) for symbol in SYMBOLS]
    other = routes(lab, programs, "unlinked", "plugin-lazy:linked", lab.hook, SHAREPOD_KEEP_DEEPBIND="0")
    assert [line.split() for line in other] == [expected(symbol, through_gate=True) for symbol in SYMBOLS]


@pytest.mark.parametrize("route", ["linked", "soname", "gpa2"])
@pytest.mark.parametrize("hook_first", [True, False])
def test_another_interposer_keeps_its_place_and_the_gate_counts_once(
    lab: Lab, programs: dict[str, Path], third: Path, route: str, hook_first: bool
) -> None:
    order = [lab.hook, third] if hook_first else [third, lab.hook]
    lines = {line.split()[0]: line.split() for line in routes(lab, programs, "lazy", route, *order, THIRD="report")}
    for symbol in SYMBOLS:
        assert lines[symbol.name] == expected(symbol, through_gate=True)
    # Only the exported name leads through the tool, as it does without the hook.
    alone = routes(lab, programs, "lazy", route, third, THIRD="report")
    seen = [line for line in lines if line.startswith("third:")]
    assert seen == [line.split()[0] for line in alone if line.startswith("third:")]
    assert bool(seen) == (route == "linked")


def test_rtld_next_is_next_to_the_caller_in_both_orders(lab: Lab, third: Path) -> None:
    program = compile_c(lab.directory / "mallocs", C / "mallocs.c")
    for order in ([lab.hook, third], [third, lab.hook]):
        done = run([program], lab.env(*order, THIRD="malloc"))
        assert (done.returncode, done.stdout) == (0, "malloc 1\n"), done.stderr


@pytest.mark.parametrize(
    ("hook_first", "route"),
    [(True, "soname"), (True, "gpa2"), (True, "plugin-lazy:linked"), (False, "soname"), (False, "gpa2")],
)
def test_a_tool_that_wraps_the_loader_itself_keeps_its_place(
    lab: Lab, programs: dict[str, Path], hook_first: bool, route: str
) -> None:
    tool = compile_c(lab.directory / "libloadertool.so", *STRICT, "-shared", C / "loadertool.c", "-ldl")
    env = lab.env(*([lab.hook, tool] if hook_first else [tool, lab.hook]))
    if ":" in route:
        plugin, route = route.split(":")
        env["PLUGIN"] = str(programs[plugin])
        route = f"plugin:{route}"
    done = run([programs["unlinked"], route], env)
    assert (done.returncode, done.stderr) == (0, "tool 1 1\n")
    # A tool in front that asks for libc's own version of dlsym (dlvsym) goes past every preloaded library, ours too.
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines == [expected(symbol, through_gate=hook_first) for symbol in SYMBOLS]


def test_without_a_driver_a_wrapper_says_not_initialized(lab: Lab) -> None:
    program = compile_c(lab.directory / "driverless", *STRICT, C / "driverless.c", "-ldl")
    done = run([program], lab.env(lab.hook))
    assert (done.returncode, done.stdout) == (0, "cuInit 3 errno 77\ncuLaunchKernel 3 errno 77\n")


def test_symbols_that_are_not_metered_and_errors_of_dlsym_pass_untouched(lab: Lab) -> None:
    program = compile_c(lab.directory / "untouched", *STRICT, C / "untouched.c", "-ldl")
    with_hook = run([program], lab.env(lab.hook))
    without = run([program], lab.env())
    assert with_hook.stdout == without.stdout
    assert with_hook.returncode == without.returncode == 0
    assert "cuNoSuchName: (nil)" in with_hook.stdout
