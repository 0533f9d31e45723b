"""Test the users' socket: it registers, lists and watches, and changes only what the caller's token was given for."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bad_input import facts_of

from rig.agent import MakeAgent, RunningAgent
from rig.until import until
from sharepod.agent.api.users import READS
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

MINE, THEIRS = "m" * 43, "t" * 43
DENIED, INVALID = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT
NOBODY = 65534
# Our interpreter may lie in root's home. This capability lets the user read it, but does not open a socket.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)


class User:
    """A caller on the users' socket with one token."""

    def __init__(self, stub: rpc.NodeServiceStub, token: str) -> None:
        self._stub = stub
        self._metadata = (("sharepod-token", token),) if token else ()

    def call(self, method: str, request: object) -> object:
        return getattr(self._stub, method)(request, metadata=self._metadata)

    def register(self, name: str = "", **fields: object) -> pb.Share:
        ask = pb.RegisterShareRequest(name=name, devices=[pb.DeviceAsk(request_millipercent=10_000)], **fields)  # type: ignore[arg-type]
        answer = self.call("RegisterShare", ask)
        assert isinstance(answer, pb.RegisterShareResponse)
        return answer.share

    def refusal(self, method: str, request: object) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as refused:
            self.call(method, request)
        error = refused.value
        assert isinstance(error, grpc.Call)
        return error.code(), str(error.details())


@pytest.fixture
def open_agent(make_agent: MakeAgent) -> RunningAgent:
    return make_agent("--users-socket-mode", "0666").start()


@contextlib.contextmanager
def users(agent: RunningAgent) -> Iterator[tuple[User, User, User]]:
    path = agent.directory / "users.sock"
    until(lambda: path.exists() and path.stat().st_mode & 0o777 == 0o666)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = rpc.NodeServiceStub(channel)
        yield User(stub, MINE), User(stub, THEIRS), User(stub, "")


def changes(share: str) -> dict[str, object]:
    return {
        "UpdateShare": pb.UpdateShareRequest(share=share, devices=[pb.DeviceChange(limit_millipercent=50_000)]),
        "PauseShare": pb.PauseShareRequest(share=share),
        "ResumeShare": pb.ResumeShareRequest(share=share),
        "ReleaseShare": pb.ReleaseShareRequest(share=share),
    }


def test_a_share_is_changed_with_its_owners_token_alone_and_by_operators(open_agent: RunningAgent) -> None:
    operators = open_agent.register(10, name="operators").share
    with users(open_agent) as (me, stranger, unnamed):
        mine = me.register("mine")
        for share, callers in ((mine.id, (stranger, unnamed)), ("mine", (stranger,)), (operators.id, (me, unnamed))):
            for method, request in changes(share).items():
                for caller in callers:
                    code, text = caller.refusal(method, request)
                    assert code is DENIED, (method, text)
                    assert "is not yours: " in text
        assert [share.paused for share in open_agent.shares()] == [False, False]
        for method, request in changes("mine").items():
            me.call(method, request)
        again = me.register("again")
        open_agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=again.id))
    assert [share.name for share in open_agent.shares()] == ["operators"]


def test_what_is_neither_a_look_nor_a_share_of_ones_own_is_refused_there(open_agent: RunningAgent) -> None:
    rpcs = {method.name for method in pb.DESCRIPTOR.services_by_name["NodeService"].methods}
    with users(open_agent) as (me, _, unnamed):
        mine = me.register("mine")
        asked = {name: getattr(pb, f"{name}Request")() for name in ("ListShares", "ListTurns", "GetNode")}
        asked["ExplainShare"] = pb.ExplainShareRequest(share="mine")
        for method, request in asked.items():
            assert MINE not in str(unnamed.call(method, request))
        stream = unnamed.call("WatchUsage", pb.WatchUsageRequest())
        assert MINE not in str(next(stream))  # type: ignore[call-overload]
        stream.cancel()  # type: ignore[attr-defined]
        assert {*asked, "WatchUsage"} == READS
        for method in rpcs - READS - {"RegisterShare"}:
            request = changes(mine.id).get(method) or getattr(pb, f"{method}Request")()
            assert unnamed.refusal(method, request)[0] is DENIED, method
        code, text = me.refusal("ReportPlugin", pb.ReportPluginRequest())
        assert (code, "agent.sock" in text) == (DENIED, True)


def test_nobody_passes_for_a_pod_there(open_agent: RunningAgent) -> None:
    with users(open_agent) as (me, _, unnamed):
        for fields, text in (
            ({"id": "abcdefghjk"}, "an id"),
            ({"labels": {"pod": "x"}}, "label pod"),
            ({"labels": {"pod_uid": "x"}}, "label pod_uid"),
        ):
            ask = pb.RegisterShareRequest(devices=[pb.DeviceAsk()], **fields)  # type: ignore[arg-type]
            found, said = me.refusal("RegisterShare", ask)
            assert (found, text in said) == (DENIED, True)
        assert unnamed.refusal("RegisterShare", pb.RegisterShareRequest(devices=[pb.DeviceAsk()]))[0] is INVALID
        mine = me.register("mine", labels={"job": "x"})
        change = pb.UpdateShareRequest(share=mine.id, labels={"pod": "x"})
        assert me.refusal("UpdateShare", change)[0] is DENIED


def test_a_gang_is_its_owners_and_so_is_its_pause(open_agent: RunningAgent) -> None:
    with users(open_agent) as (me, stranger, _):
        first = me.register("first", gang="job")
        me.register("second", gang="job")
        others = stranger.register("third", gang="job"), open_agent.register(10, name="fourth", gang="job").share
        assert "of gang job, with second: they get their devices together" in facts_of(open_agent, first)
        for share in others:
            assert "of gang job, alone on this node" in facts_of(open_agent, share)


def test_a_token_outlives_the_agent_and_is_nowhere_in_the_clear(open_agent: RunningAgent) -> None:
    with users(open_agent) as (me, _, _):
        me.register("mine", gang="job")
    assert MINE not in (open_agent.directory / "checkpoint.json").read_text(encoding="utf-8")
    open_agent.stop()
    open_agent.start()
    assert MINE not in open_agent.log()
    with users(open_agent) as (me, stranger, _):
        assert stranger.refusal("PauseShare", pb.PauseShareRequest(share="mine"))[0] is DENIED
        me.call("ReleaseShare", pb.ReleaseShareRequest(share="mine"))
    assert open_agent.shares() == []
    assert open_agent.stop() == 0
    assert not open_agent.directory.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_plain_user_runs_a_program_and_cannot_touch_anothers_share(open_agent: RunningAgent) -> None:
    until((open_agent.directory / "users.sock").exists)
    open_agent.directory.parent.chmod(0o711)
    open_agent.register(10, name="operators")
    with tempfile.TemporaryDirectory(prefix="sharepod-user-") as home:
        os.chown(home, NOBODY, NOBODY)
        place = {"HOME": home, "SHAREPOD_RUNTIME_DIRECTORY": str(open_agent.directory)}
        environment = {"PATH": os.environ["PATH"], **place}

        def start(*words: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [*AS_NOBODY, sys.executable, "-m", "sharepod.cli", *words],
                env=environment,
                cwd="/",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        def sharepod(*words: str) -> tuple[int, str]:
            done = start(*words)
            out, err = done.communicate(timeout=60)
            return done.returncode, out + err

        with start("run", "--gpu", "10", "--name", "held", "--gang", "job", "--", "sleep", "60") as held:
            try:
                until(lambda: len(open_agent.shares()) == 2)
                assert sharepod("pause", "held")[0] == 0
                code, text = sharepod("pause", "operators")
                assert (code, text.count("\n")) == (1, 1)
                assert "share operators is not yours: " in text
                token = next(Path(home).rglob("token"))
                assert token.stat().st_mode & 0o777 == 0o600
            finally:
                held.send_signal(signal.SIGINT)
        until(lambda: [share.name for share in open_agent.shares()] == ["operators"])
        token.unlink()
        os.chown(token.parent, 0, 0)
        assert sharepod("run", "--gpu", "10", "--", "echo", "hello") == (0, "hello\n")
        code, text = sharepod("run", "--gpu", "10", "--gang", "job", "--", "true")
        assert (code, "XDG_STATE_HOME" in text) == (1, True)
