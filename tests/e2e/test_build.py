"""The servers of Kubernetes are built once, and what is missing for it is said in one line with the remedy."""

import time
from pathlib import Path

import build_kubernetes
import pytest
from build_kubernetes import SERVERS, BuildError, build, let_extenders_preempt, version_flags


def test_a_missing_package_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    packages = tmp_path / "apt-packages.txt"
    packages.write_text("# a comment\ndpkg\nno-such-compiler\nno-such-library\n")
    monkeypatch.setattr(build_kubernetes, "PACKAGES", packages)
    assert build_kubernetes.main() == 1
    remedy = "apt-get install --no-install-recommends no-such-compiler no-such-library"
    assert capsys.readouterr() == ("", f"the cluster lacks packages: {remedy}\n")


def test_a_build_that_fails_leaves_nothing_that_looks_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: Path, version: str) -> Path:
        folder.mkdir()
        raise BuildError(f"no source of {version}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build_kubernetes, "fetch_source", fail)
    with pytest.raises(BuildError, match="no source"):
        build()
    assert [path.name for path in build_kubernetes.cache_root().iterdir()] == ["lock"]


FACTORY = "NewMap(a,\n\t\tframeworkruntime.WithPodNominator(nominator),\n\t\tframeworkruntime.WithProfile(b),\n\t)\n"


def test_extenders_are_handed_to_preemption_once(tmp_path: Path) -> None:
    (factory := tmp_path / "factory.go").write_text(FACTORY)
    for _ in range(2):
        let_extenders_preempt(factory)
        assert factory.read_text().count("\t\tframeworkruntime.WithExtenders(extenders),\n") == 1
        assert factory.read_text().count("frameworkruntime") == 3


def test_a_source_in_which_extenders_cannot_be_handed_on_is_said(tmp_path: Path) -> None:
    (factory := tmp_path / "factory.go").write_text("package scheduler\n")
    with pytest.raises(BuildError, match="102971"):
        let_extenders_preempt(factory)


def test_servers_that_are_built_are_there_at_once(servers: Path) -> None:
    began = time.monotonic()
    assert build() == servers
    assert time.monotonic() - began < 10
    assert {path.name for path in servers.iterdir()} == set(SERVERS)


def test_the_release_is_what_the_package_really_is() -> None:
    assert "version.gitVersion=v1.20.2 " in version_flags("1.20.5+really1.20.2-1.1+deb12u1")
    assert "version.gitVersion=v1.32.7 " in version_flags("1.32.7+ds-2")
