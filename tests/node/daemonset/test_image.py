"""Test the image's Containerfile and the two programs in the image. The e2e tests build the image and run it."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agent_fixtures import agents
from containerfile import Step, context_files, read_steps

from rig import REPO_ROOT

IMAGE = REPO_ROOT / "daemonset" / "image"
CONTAINERFILE = (REPO_ROOT / "Containerfile").read_text()
GET_NODE = "/sharepod.v1.NodeService/GetNode"


def steps(word: str) -> list[Step]:
    return [step for step in read_steps(CONTAINERFILE) if step.word == word]


def test_the_image_is_built_in_two_stages_of_a_pinned_base_and_runs_as_nobody() -> None:
    assert {step.text.split()[0] for step in steps("FROM")} == {"${DEBIAN}"}
    assert len(steps("FROM")) == 2
    [base] = steps("ARG")
    assert re.fullmatch(r"DEBIAN=debian:\d+\.\d+-slim", base.text), "a point release, of no particular registry"
    [user] = steps("USER")
    assert all(int(number) > 0 for number in user.text.split(":"))


def test_what_is_installed_from_a_registry_is_pinned() -> None:
    commands = [part for step in steps("RUN") for part in re.split(r" && ", step.text) if "bin/pip " in part]
    assert len(commands) == 3
    for command in commands:
        assert "--constraint constraints.txt" in command or "--no-deps" in command
    assert not re.search(r"index-url|find-links|https?://", CONTAINERFILE)


def test_every_package_is_in_the_build_and_nothing_that_was_built_here() -> None:
    files = set(context_files(REPO_ROOT))
    for link in (REPO_ROOT / "sharepod").iterdir():
        if link.is_symlink():
            assert Path(link.name) / "__init__.py" in files
            assert Path("sharepod") / link.name in files
    assert {Path(name) for name in ("setup.py", "constraints.txt", "daemonset/image/probe.py")} <= files
    assert [path for path in files if path.suffix in (".so", ".pyc", ".o") or "_pb2" in path.name] == []
    assert not [path for path in files if path.parts[0] in (".git", ".venv", "build", "tests", "docs")]


# ---- the probe


def probe(path: Path, method: str, seconds: float = 5) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", IMAGE / "probe.py", path, method, str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_probe_succeeds_when_the_service_answers_and_not_before() -> None:
    with agents() as make:
        agent = make()
        path = agent.directory / "agent.sock"
        assert "No such file or directory" in probe(path, GET_NODE).stderr
        agent.start()
        done, refused = probe(path, GET_NODE), probe(path, "/sharepod.v1.NodeService/Nothing")
    assert (done.returncode, done.stderr) == (0, "")
    said = f"{path} /sharepod.v1.NodeService/Nothing: it refused the call\n"
    assert (refused.returncode, refused.stderr) == (1, said)


def test_a_service_that_hangs_fails_the_probe(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        done = probe(path, GET_NODE, 0.2)
    assert (done.returncode, done.stderr) == (1, f"{path} {GET_NODE}: timed out\n")


@pytest.mark.parametrize("name", ["SHAREPOD_WAIT_FOR", "SHAREPOD_PLUGIN_WAIT_FOR"])
def test_a_service_that_waits_for_the_driver_is_well_and_is_asked_once_there_is_one(tmp_path: Path, name: str) -> None:
    driver = tmp_path / "driver"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}

    def code(file: object) -> int:
        command = [sys.executable, "-IS", IMAGE / "probe.py", tmp_path / "nowhere", GET_NODE]
        return subprocess.run(command, env=environment | {name: str(file)}, capture_output=True, check=False).returncode

    assert code(driver) == 0
    driver.touch()
    assert [code(driver), code("")] == [1, 1]


# ---- the installer


def install(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", IMAGE / "install.py", *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def test_what_pods_may_have_mapped_is_never_written_again(tmp_path: Path) -> None:
    state = tmp_path / "gpus" / "state"
    state.parent.mkdir()
    done = install(tmp_path, "--simulated", state)
    assert (done.returncode, done.stderr) == (0, "")
    [hook] = (tmp_path / "hook").iterdir()
    libraries = sorted((tmp_path / "simgpu").iterdir())
    assert [path.name for path in libraries] == ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"]
    before = hook.stat().st_ino
    with libraries[0].open("rb") as mapped:
        held = os.fstat(mapped.fileno()).st_ino
        assert install(tmp_path, "--simulated", state).returncode == 0
        assert libraries[0].stat().st_ino != held, "replaced, not written"
        assert [library.resolve().name for library in libraries] == [*["libcuda.so.1"] * 2, *["libnvidia-ml.so.1"] * 2]
    assert hook.stat().st_ino == before
    assert state.stat().st_mode & 0o666 == 0o666
    assert sorted(path.name for path in (tmp_path / "simgpu").iterdir()) == [path.name for path in libraries]


def test_a_directory_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    done = install(tmp_path / "nowhere")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "No such file or directory" in done.stderr
