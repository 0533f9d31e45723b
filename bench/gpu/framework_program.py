"""Runs small typical GPU programs, with results that can be compared bit for bit and a pace that can be timed.

    python3 -P framework_program.py MODE [SECONDS]

Prints one JSON object: digests of all results, the time of a step in batches, and what the mode found out; or why it
cannot run here. It knows nothing of shares.
"""

import ctypes
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

WIDTH, LAYERS, BATCH = 1024, 6, 256  # of the network and its inputs
STEPS, GROUP = 30, 20
BLOCK_BYTES = 256 << 20
CAPTURED = ("cuLaunch", "cuGraphLaunch", "cuMemset", "cuMemcpyDtoD")
"""Families of functions that the hook counts as launches and a capture can hold."""
Told = dict[str, Any]


class NotHere(Exception):
    """The program cannot run on this machine. The text says why."""


def digest(parts: Iterable[bytes]) -> str:
    """Return one digest of all parts."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def paced(step: Callable[[], object], wait: Callable[[], object], seconds: float) -> list[int]:
    """Return the time of a step, measured once per GROUP steps, for about `seconds`."""
    found = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began_ns = time.monotonic_ns()
        for _ in range(GROUP):
            step()
        wait()
        found.append((time.monotonic_ns() - began_ns) // GROUP)
    return found


# ---- PyTorch ----


def _torch() -> Any:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise NotHere("its PyTorch sees no GPU")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    return torch


def _bytes(torch: Any, tensors: Iterable[Any]) -> Iterable[bytes]:
    for tensor in tensors:
        yield bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).tolist())


def _network(torch: Any) -> Any:
    layers: list[Any] = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 32)).cuda()


def _trainer(torch: Any) -> tuple[Any, Callable[[], Any]]:
    """Return a network, and the function that trains it by one step and returns the loss."""
    model = _network(torch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(BATCH, WIDTH).cuda(), torch.randn(BATCH, 32).cuda()

    def step() -> Any:
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimiser.step()
        return loss

    return model, step


def training(seconds: float) -> Told:
    """Train in eager mode."""
    torch = _torch()
    model, step = _trainer(torch)
    losses = [step().detach() for _ in range(STEPS)]
    found = {"losses": digest(_bytes(torch, losses)), "parameters": digest(_bytes(torch, model.parameters()))}
    return {"digests": found, "step_ns": paced(step, torch.cuda.synchronize, seconds)}


def inference(seconds: float) -> Told:
    """Run a network forward in eager mode."""
    torch = _torch()
    model, inputs = _network(torch), torch.randn(BATCH, WIDTH).cuda()
    with torch.no_grad():
        outputs = model(inputs)
        timed = paced(lambda: model(inputs), torch.cuda.synchronize, seconds)
    return {"digests": {"outputs": digest(_bytes(torch, [outputs]))}, "step_ns": timed}


def compiled(seconds: float) -> Told:
    """Run a network forward through torch.compile(mode="reduce-overhead"), which replays CUDA graphs."""
    torch = _torch()
    model, inputs = _network(torch), torch.randn(BATCH, WIDTH).cuda()
    fast = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):  # torch compiles, warms up and captures here
            outputs = fast(inputs).clone()
        timed = paced(lambda: fast(inputs), torch.cuda.synchronize, seconds)
    return {"digests": {"outputs": digest(_bytes(torch, [outputs]))}, "step_ns": timed}


def _launches() -> int:
    """Return the census's count of this process's launches; 0 without a census."""
    library = os.environ.get("CENSUS_LIBRARY")
    if library is None:
        return 0
    path = os.environ["CUPTI_REPORT"] + ".snapshot"
    if ctypes.CDLL(library).census_write(os.fsencode(path)):
        raise OSError(f"{path} cannot be written")
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        counts = json.load(file)
    return sum(calls for name, calls in counts if name.startswith(CAPTURED) and "HostFunc" not in name)


def _captured(torch: Any, model: Any, inputs: Any) -> tuple[Any, Any, int]:
    """Capture a forward pass. Return the graph, its outputs, and how many launches the capture holds."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph, before = torch.cuda.CUDAGraph(), _launches()
    with torch.no_grad(), torch.cuda.graph(graph):
        outputs = model(inputs)
    return graph, outputs, _launches() - before


def graphs(seconds: float) -> Told:
    """Capture a network's forward pass with torch.cuda.graph and replay it on other inputs."""
    torch = _torch()
    model, inputs = _network(torch), torch.randn(BATCH, WIDTH).cuda()
    graph, outputs, _ = _captured(torch, model, inputs)
    seen = []
    for scale in range(1, 6):
        inputs.mul_(scale / 3)
        graph.replay()
        seen.append(outputs.clone())
    found = {"outputs": digest(_bytes(torch, seen))}
    return {"digests": found, "step_ns": paced(graph.replay, torch.cuda.synchronize, seconds)}


def counted(_seconds: float) -> Told:
    """Train, replay a graph, set and copy memory, while launches are counted outside. Tell what was captured."""
    torch = _torch()
    model, step = _trainer(torch)
    for _ in range(STEPS):
        step()
    graph, _, captured = _captured(torch, model, torch.randn(BATCH, WIDTH).cuda())
    for _ in range(GROUP):
        graph.replay()
    first = torch.empty(1 << 20, device="cuda")
    first.zero_()
    first.clone().copy_(first)
    torch.cuda.synchronize()
    time.sleep(0.5)  # for the reader of the hook's count outside
    if "CUDA_INJECTION64_PATH" in os.environ:
        ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).cupti_report(os.environ["CUPTI_REPORT"].encode())
    return {"captured": captured}


def greedy(_seconds: float) -> Told:
    """Ask for more memory than there is: fill, fail, recover by empty_cache, and by PyTorch's own retry."""
    torch = _torch()
    _, total = torch.cuda.mem_get_info()
    blocks: list[Any] = []
    said = ""
    try:
        while len(blocks) * BLOCK_BYTES < 2 * total:
            blocks.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        said = str(error).splitlines()[0]
    reached = len(blocks) * BLOCK_BYTES
    half = len(blocks) // 2
    del blocks[half:]
    torch.cuda.empty_cache()
    blocks += [torch.ones(BLOCK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(half // 2)]
    alive = all(int(block[-1]) == 1 for block in blocks[half:])
    # Put all blocks into PyTorch's cache. A block that fits only in their place makes it release them and try again.
    blocks.clear()
    whole = torch.ones(reached * 3 // 4, dtype=torch.uint8, device="cuda")
    retries = int(torch.cuda.memory_stats()["num_alloc_retries"])
    recovered = alive and int(whole[-1]) == 1
    return {"total": total, "reached": reached, "said": said, "recovered": recovered, "retries": retries}


# ---- others ----


def with_jax(seconds: float) -> Told:
    """Train with JAX."""
    jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
    if jax.default_backend() != "gpu":
        raise NotHere(f"its JAX runs on {jax.default_backend()}")
    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[1:]]
    inputs = jax.random.normal(keys[0], (BATCH, WIDTH))

    def loss(layers: Any) -> Any:
        found = inputs
        for layer in layers:
            found = jnp.tanh(found @ layer)
        return (found**2).mean()

    step = jax.jit(lambda layers: [w - 0.1 * g for w, g in zip(layers, jax.grad(loss)(layers), strict=True)])
    state = {"weights": weights}

    def advance() -> None:
        state["weights"] = step(state["weights"])

    for _ in range(STEPS):
        advance()
    found = digest(bytes(memoryview(jax.device_get(w)).cast("B")) for w in state["weights"])
    timed = paced(advance, lambda: jax.block_until_ready(state["weights"]), seconds)
    return {"digests": {"weights": found}, "step_ns": timed}


def with_cupy(seconds: float) -> Told:
    """Sort, scan and multiply with CuPy, and run a kernel of the program's own."""
    cupy = importlib.import_module("cupy")
    double = cupy.RawKernel(
        'extern "C" __global__ void twice(float *x, int n) { int i = blockDim.x * blockIdx.x + threadIdx.x; '
        "if (i < n) x[i] *= 2; }",
        "twice",
    )
    numbers = cupy.sin(cupy.arange(1 << 20, dtype=cupy.float32))
    square = numbers.reshape(1024, 1024)

    def step() -> Any:
        product = cupy.sort((square @ square).ravel())
        cupy.cumsum(product.view(cupy.int32), out=product.view(cupy.int32))  # a sum of floats varies from run to run
        double((4096,), (256,), (product, 1 << 20))
        return product

    found = digest([step().get().tobytes()])
    return {"digests": {"product": found}, "step_ns": paced(step, cupy.cuda.Device().synchronize, seconds)}


def with_triton(seconds: float) -> Told:
    """Run a Triton kernel."""
    torch = _torch()
    program = importlib.import_module("triton_program")
    left, right = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 20, device="cuda")
    outputs = program.fused(left, right)
    timed = paced(lambda: program.fused(left, right), torch.cuda.synchronize, seconds)
    return {"digests": {"outputs": digest(_bytes(torch, [outputs]))}, "step_ns": timed}


MODES: dict[str, Callable[[float], Told]] = {
    "training": training,
    "inference": inference,
    "compiled": compiled,
    "graphs": graphs,
    "counted": counted,
    "greedy": greedy,
    "jax": with_jax,
    "cupy": with_cupy,
    "triton": with_triton,
}


def main(arguments: list[str]) -> int:
    """Run a mode. Return the exit code."""
    if not arguments or arguments[0] not in MODES:
        print(f"usage: framework_program.py {'|'.join(MODES)} [SECONDS]", file=sys.stderr)
        return 2
    try:
        told = MODES[arguments[0]](float(arguments[1]) if len(arguments) > 1 else 1.5)
    except (ImportError, NotHere) as error:
        told = {"not_here": str(error)}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    sys.exit(main(sys.argv[1:]))
