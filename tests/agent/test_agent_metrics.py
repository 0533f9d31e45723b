"""The metrics that a real agent serves."""

from __future__ import annotations

import re
import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from agent_process import free_port, scrape

from sharepod.agent.metrics import DEVICE_ROWS, INFO_NAME, NODE_ROWS, SHARE_ROWS, manual
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from agent_process import MakeAgent

ROOT = Path(__file__).resolve().parents[2]


def test_metrics_are_those_of_the_manual_and_start_at_zero(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    assert agent.stub.GetNode(pb.GetNodeRequest()).metrics_address == address
    families = set(re.findall(r"^# TYPE (\S+)", scrape(address), re.MULTILINE))
    rows = [row.name for row in (*SHARE_ROWS, *DEVICE_ROWS, *NODE_ROWS)] + [INFO_NAME]
    assert families == set(rows)
    assert set(re.findall(r"^\| `(\S+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)) == set(rows)

    share = agent.register(30, name="a", labels={"namespace": "n", "pod": "p", "container": "c"}).share
    text = scrape(address)
    lines = [line for line in text.splitlines() if f'share="{share.id}"' in line]
    assert len(lines) == len(SHARE_ROWS)
    assert all('namespace="n"' in line and 'pod="p"' in line and 'container="c"' in line for line in lines)
    counters = [line for line in lines if "_total{" in line]
    assert len(counters) == 14
    assert all(line.endswith(" 0.0") for line in counters)
    assert any(line.startswith("sharepod_share_request_ratio{") and line.endswith(" 0.3") for line in lines)
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="a"))
    assert share.id not in scrape(address)


def test_the_manual_of_the_metrics_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == manual()


def test_a_taken_metrics_address_is_named(make_agent: MakeAgent) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = make_agent("--metrics-listen", address)
        process = agent.spawn()
        _, output = process.communicate(timeout=10)
    assert process.returncode == 1
    assert output == (
        f"sharepod agent: metrics address {address}: Address already in use: "
        "choose another with --metrics-listen, or off\n"
    )
    assert not agent.directory.exists()


def test_a_scrape_is_of_now(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    make_agent("--metrics-listen", address).start()
    seen = []
    for _ in range(6):
        found = re.search(r"^sharepod_device_decisions_total{.*} (\S+)$", scrape(address), re.MULTILINE)
        assert found
        seen.append(float(found[1]))
        time.sleep(0.25)
    # The arbiter decides ten times a second when nothing happens; the status of the checkpoint is seconds old.
    assert all(later > earlier for earlier, later in pairwise(seen)), seen
