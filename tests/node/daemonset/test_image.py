"""The image: what its Containerfile says, how its steps are run without a registry, and the two programs in it."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from containerfile import Build, ContainerfileError, Stage, Step, context_files, read_steps

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


def test_the_steps_that_need_no_root_are_run(tmp_path: Path) -> None:
    context, empty = tmp_path / "context", tmp_path / "empty.tar"
    (context / "a").mkdir(parents=True)
    (context / "a" / "one").write_text("1")
    (context / "a" / "link").symlink_to("one")
    (context / "b.so").write_text("")
    (context / ".dockerignore").write_text("*\n!a\n")
    with tarfile.open(empty, "w"):
        pass
    text = (
        "ARG BASE=x:1\nFROM ${BASE} AS first\nWORKDIR /w\nCOPY . .\n"
        "FROM ${BASE}\nCOPY --from=first /w/a /opt\nCOPY --chmod=0750 a/one /bin/tool\n"
        'ENV A=b C="d e"\nUSER 9:9\nENTRYPOINT ["tool"]\n'
    )
    asked: list[str] = []

    def base(image: str) -> Path:
        asked.append(image)
        return empty

    stage = Build(context, tmp_path / "scratch", base).run(text, {"BASE": "y:2"})
    assert asked == ["y:2", "y:2"]
    assert sorted(path.name for path in (stage.root / "opt").iterdir()) == ["link", "one"]
    assert (stage.root / "opt" / "link").is_symlink()
    assert (stage.root / "bin" / "tool").stat().st_mode & 0o777 == 0o750
    assert (stage.environment["C"], stage.user, stage.entrypoint) == ("d e", "9:9", ["tool"])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("FROM x\nADD a b\n", "line 2: ADD is not among what is run here"),
        ("FROM x\nCOPY nothing /\n", "line 2: nothing is not in the build's context"),
        ("FROM x\nRUN a \\\n", "line 2: the last instruction does not end"),
        ("from x\n", "line 1: 'from x' is no instruction"),
        ("# nothing\n", "there is no FROM"),
    ],
)
def test_a_step_that_is_not_understood_is_an_error(tmp_path: Path, text: str, cause: str) -> None:
    empty = tmp_path / "empty.tar"
    with tarfile.open(empty, "w"):
        pass
    with pytest.raises(ContainerfileError, match=re.escape(cause)):
        Build(tmp_path, tmp_path / "scratch", lambda _: empty).run(text)


def test_a_step_runs_again_only_when_something_has_changed_that_it_depends_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty, context, kept = tmp_path / "empty.tar", tmp_path / "context", tmp_path / "kept"
    with tarfile.open(empty, "w"):
        pass
    context.mkdir()
    kept.mkdir()
    ran: list[str] = []

    def run(_: Build, step: Step, stage: Stage) -> None:
        ran.append(step.text)
        (stage.root / step.text).write_text("made")

    monkeypatch.setattr(Build, "_run_anew", run)
    text = "FROM x\nCOPY pins /\nRUN tools\nCOPY . /\nRUN program\n"
    for number, (pins, source, runs) in enumerate(
        [("1", "a", ["tools", "program"]), ("1", "b", ["program"]), ("2", "b", ["tools", "program"])]
    ):
        (context / "pins").write_text(pins)
        (context / "source").write_text(source)
        ran.clear()
        stage = Build(context, tmp_path / str(number), lambda _: empty, kept=kept).run(text)
        assert ran == runs
        assert {path.name: path.read_text() for path in stage.root.iterdir()} == {
            "pins": pins, "source": source, "tools": "made", "program": "made",
        }  # fmt: skip


# ---- the probe


def probe(path: Path, method: str, seconds: float = 5) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", IMAGE / "probe.py", path, method, str(seconds)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def agent() -> Iterator[Path]:
    """Start an agent; return its socket."""
    directory = Path(tempfile.mkdtemp(prefix="sharepod-test-", dir="/dev/shm"))
    command = [sys.executable, "-m", "sharepod.agent.main", "--simulate", "1xH200", "--metrics-listen", "off"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SHAREPOD_", "SIMGPU_"))}
    process = subprocess.Popen([*command, "--runtime-directory", directory / "run"], env=environment)
    yield directory / "run" / "agent.sock"
    process.terminate()
    assert process.wait() == 0
    shutil.rmtree(directory)


def test_a_probe_succeeds_when_the_service_answers_and_not_before(agent: Path) -> None:
    end = time.monotonic() + 30
    while (done := probe(agent, GET_NODE)).returncode and time.monotonic() < end:
        time.sleep(0.1)
    assert (done.returncode, done.stderr) == (0, "")
    refused = probe(agent, "/sharepod.v1.NodeService/Nothing")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"{agent} /sharepod.v1.NodeService/Nothing: it refused the call\n",
    )


def test_a_service_that_is_gone_or_hangs_fails_the_probe(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert "No such file or directory" in probe(path, GET_NODE).stderr
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        done = probe(path, GET_NODE, 0.2)
    assert (done.returncode, done.stderr) == (1, f"{path} {GET_NODE}: timed out\n")


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
    assert [path.name for path in libraries] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    before = hook.stat().st_ino
    with libraries[0].open("rb") as mapped:
        held = os.fstat(mapped.fileno()).st_ino
        assert install(tmp_path, "--simulated", state).returncode == 0
        assert libraries[0].stat().st_ino != held, "replaced, not written"
    assert hook.stat().st_ino == before
    assert state.stat().st_mode & 0o666 == 0o666
    assert sorted(path.name for path in (tmp_path / "simgpu").iterdir()) == [path.name for path in libraries]


def test_a_directory_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    done = install(tmp_path / "nowhere")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "No such file or directory" in done.stderr
