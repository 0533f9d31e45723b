"""A small PyTorch program whose launches are counted from outside: training steps, a captured graph, copies, memsets.

Prints one JSON object: how many launches went into the capture, which run nothing by themselves, by the census's count.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

REPLAYS = 20
HOOKED = ("cuLaunch", "cuGraphLaunch", "cuMemset", "cuMemcpyDtoD")
"""The families that the hook counts as launches, as far as a capture can hold them."""


def launches_so_far() -> int:
    """Ask the census how many launches this process has made; 0 without one."""
    library = os.environ.get("CENSUS_LIBRARY")
    if library is None:
        return 0
    path = Path(os.environ["CUPTI_REPORT"] + ".snapshot")
    if ctypes.CDLL(library).census_write(os.fsencode(path)):
        raise OSError(f"{path} cannot be written")
    counts = json.loads(path.read_text(encoding="utf-8"))
    return sum(calls for name, calls in counts if name.startswith(HOOKED) and "HostFunc" not in name)


def train(steps: int) -> None:
    """Train a small network on noise."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = torch.randn(256, 512).cuda(), torch.randn(256, 16).cuda()
    for _ in range(steps):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step()
    print(f"loss {loss.item():.3f}", file=sys.stderr)


def replay_graph() -> int:
    """Capture products into a graph and replay it; return how many launches the capture took in."""
    left, right = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    warm: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
    with torch.cuda.stream(warm):
        for _ in range(3):
            left @ right
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = launches_so_far()
    with torch.cuda.graph(graph):
        result = (left @ right).relu() @ right
    captured = launches_so_far() - before
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    print(f"sum {result.sum().item():.3f}", file=sys.stderr)
    return captured


def main() -> None:
    """Run everything and say what the capture took in."""
    train(int(sys.argv[1]))
    captured = replay_graph()
    first = torch.empty(1 << 20, device="cuda")
    first.zero_()
    first.clone().copy_(first)
    torch.cuda.synchronize()
    time.sleep(0.5)  # the hook's count is read from outside
    if "CUDA_INJECTION64_PATH" in os.environ:
        ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).cupti_report(os.environ["CUPTI_REPORT"].encode())
    print(json.dumps({"captured": captured}))


if __name__ == "__main__":
    main()
