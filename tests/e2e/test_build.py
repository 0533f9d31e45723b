"""Test that the cluster's programs are built once, and that missing needs give one line with the remedy."""

import os
from pathlib import Path

import build_tools
import pytest
from build_tools import RUNTIME, BuildError, Module, build
from programs import RELEASES, VARIABLE, Programs, chosen


def test_a_missing_package_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    packages = tmp_path / "apt-packages.txt"
    packages.write_text("# a comment\ndpkg\nno-such-compiler\nno-such-library\n")
    monkeypatch.setattr(build_tools, "PACKAGES", packages)
    assert build_tools.main() == 1
    remedy = "apt-get install --no-install-recommends no-such-compiler no-such-library"
    assert capsys.readouterr() == ("", f"the cluster lacks packages: {remedy}\n")


def go_that_says(folder: Path, version: str) -> str:
    """Make a Go of this version; return a PATH that has only this program."""
    (folder / "go").write_text(f"#!/bin/sh\necho {version}\n")
    (folder / "go").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, "Go 1.26.6 or later builds the cluster, and PATH has none: install it, or KUBECONFIG=…"),
        ("go1.19.8", "Go 1.26.6 or later builds the cluster, and PATH has go1.19.8: install a newer one"),
        ("go1.26.5", "Go 1.26.6 or later builds the cluster, and PATH has go1.26.5: install a newer one"),
    ],
)
def test_a_go_that_is_missing_or_old_is_one_line_with_the_version_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, says: str
) -> None:
    monkeypatch.setenv("PATH", go_that_says(tmp_path, version) if version else str(tmp_path))
    with pytest.raises(BuildError) as caught:
        build_tools.go_version()
    assert str(caught.value) == says


def test_a_build_that_fails_leaves_nothing_that_looks_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(module: Module, place: Path) -> Path:
        (place / module.name).mkdir()
        raise BuildError(f"no source of {module.name}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build_tools, "build_module", fail)
    with pytest.raises(BuildError, match="no source of runtime"):
        build(RUNTIME)
    assert [path.name for path in (tmp_path / "sharepod" / "tools").iterdir()] == ["lock"]


def test_the_two_newest_builds_of_a_module_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(("runtime_a", "kueue_a", "runtime_b", "runtime_c")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    build_tools.remove_older(tmp_path, RUNTIME)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kueue_a", "runtime_b", "runtime_c"]


def test_programs_tell_the_versions_that_are_pinned(programs: Programs) -> None:
    told = {
        programs.kubernetes / "kubelet": chosen().version,
        programs.runtime / "containerd": RUNTIME.version,
        programs.runtime / "runc": RUNTIME.pinned("github.com/opencontainers/runc").removeprefix("v"),
    }
    for program, version in told.items():
        assert version in build_tools.output(program, "--version").replace(",", " ").split(), program


def test_a_release_that_is_not_tested_is_one_line_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1.35")
    with pytest.raises(BuildError, match=r"^KUBERNETES=1\.35 is not tested: give 1\.37 or 1\.34$"):
        chosen()
    for release, module in RELEASES.items():
        monkeypatch.setenv(VARIABLE, release)
        assert chosen() is module
        assert module.version.startswith(f"v{release}.")
