"""Test that an agent works with only the capabilities that the DaemonSet gives it."""

import os

import yaml

from rig import REPO_ROOT
from rig.agent import MakeAgent, metered, program, usage
from rig.until import until
from sharepod.proto import v1_pb2 as pb

MANIFEST = REPO_ROOT / "daemonset" / "base" / "daemonset.yaml"


def confined() -> tuple[str, ...]:
    """Return the words that start a program as the container runtime would; none if the test does not run as root."""
    if os.getuid() != 0:
        return ()
    pod = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
    [context] = [item["securityContext"] for item in pod["containers"] if item["name"] == "agent"]
    assert context["capabilities"]["drop"] == ["ALL"]
    kept = ",".join(f"+{name.lower()}" for name in context["capabilities"]["add"])
    return ("setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", "--no-new-privs")


def test_the_agent_of_the_daemonset_meters_and_tells_strays_with_what_it_may(make_agent: MakeAgent) -> None:
    agent = make_agent("--node-name", "n")
    agent.wrapper = confined()
    agent.start()
    answer = agent.register(30, name="a")
    with program(metered(answer)):
        until(lambda: usage(agent, "a").used_ns > 0 and usage(agent, "a").processes == 1)
    until(lambda: usage(agent, "a").processes == 0)
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="a"))
    lost = {**dict(answer.environment), "SHAREPOD_REGION": f"{agent.directory}/shares/{answer.share.id}"}
    with program(lost, "idle") as stray:
        until(lambda: f"pid={stray.pid}" in agent.log(), timeout_s=20.0)
    [line] = [line for line in agent.log().splitlines() if f"pid={stray.pid}" in line]
    assert "process of a share runs unmetered" in line, "its environment could be read"
    assert agent.stop() == 0
