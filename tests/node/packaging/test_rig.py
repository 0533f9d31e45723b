"""Test that the rig's core imports only the standard library, as a machine with a GPU has nothing else."""

import ast
import subprocess
import sys

from rig import REPO_ROOT

CORE = ("until", "gpu", "driver", "graphs", "structs", "script", "spin", "copying", "programs", "truth", "loads")
LOADS_THE_DRIVER = ("driver", "graphs")


def imported(module: str) -> set[str]:
    """Return the full names of the imports of a rig module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((REPO_ROOT / "rig" / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_the_core_imports_the_standard_library_and_itself_where_nothing_is_installed() -> None:
    known = {"rig", *(f"rig.{other}" for other in CORE)}
    for module in LOADS_THE_DRIVER:  # without a driver, a module that loads it cannot be imported
        assert not {name for name in imported(module) if name.split(".")[0] not in sys.stdlib_module_names} - known
    names = ", ".join(f"rig.{name}" for name in CORE if name not in LOADS_THE_DRIVER)
    code = f"import sys; sys.path.append({str(REPO_ROOT)!r}); import {names}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=30)


def test_the_rig_knows_no_tests_and_no_benches() -> None:
    for path in (REPO_ROOT / "rig").rglob("*.py"):
        module = str(path.relative_to(REPO_ROOT / "rig").with_suffix(""))
        assert not {name for name in imported(module) if name.split(".")[0] in ("bench", "tests")}, path
