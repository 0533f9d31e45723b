"""The three programs that are synthesised until they can be recorded, and where each of their figures comes from.

Pure. What is published are whole steps and the make of the programs; how a step's time divides among its kernels is
worked out here from their arithmetic and the memory they move (a roofline), and scaled so that the step is as long as
published.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.traces.format import Event, Item, Kernel, Repeat, Trace, fold

MS = 1_000_000
US = 1_000
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """What a GPU does in a nanosecond, by its data sheet."""

    flops: float
    bytes: float


A100 = Card(flops=312e3, bytes=1555)
H100 = Card(flops=989e3, bytes=3350)
FLOOR_NS = 2_500
"""No kernel is shorter, whatever it does: about what an empty one takes."""


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel of a model: its name, its arithmetic, and the bytes that it moves."""

    name: str
    flops: float
    bytes: float

    def roofline_ns(self, card: Card) -> float:
        """Return the least time that it can take."""
        return max(FLOOR_NS, self.flops / card.flops, self.bytes / card.bytes)


@dataclass
class _Table:
    """Kernels by what they are; equal ones have one number."""

    kernels: list[Kernel] = field(default_factory=list)

    def number(self, kernel: Kernel) -> int:
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def scaled(self, works: Sequence[Work], card: Card, total_ns: float) -> list[int]:
        """Return the numbers of `works`, their rooflines scaled to `total_ns` in all, to full 100 ns."""
        least = [work.roofline_ns(card) for work in works]
        scale = total_ns / sum(least)
        return [
            self.number(Kernel(max(100, round(ns * scale / 100) * 100), work.name))
            for work, ns in zip(works, least, strict=True)
        ]


def _launches(numbers: Iterable[int], gap_ns: int, stream: int = 0) -> tuple[Item, ...]:
    """Return a launch per kernel, with `gap_ns` of the host before each, the layers as loops."""
    found: list[Item] = []
    run: list[int] = []
    for number in [*numbers, -1]:
        if run and run[-1] != number:
            found.append(Event("launch", (stream, run[0], len(run), gap_ns)))
            run = []
        run.append(number)
    return fold(found)


# ---- a training loop ----

_BATCH, _CONTEXT, _WIDTH, _LAYERS, _VOCABULARY = 12, 1024, 768, 12, 50304
_TRAINING_SOURCES = {
    "the step, 135 ms": "README of github.com/karpathy/nanoGPT, `efficiency notes`: 250 ms an iteration, 135 ms with "
    "torch.compile; its bench.py: batch 12, context 1024",
    "kernels of a step": "model.py of nanoGPT (GPT-2 of 124 M parameters: 12 layers, width 768), elementwise chains "
    "fused as torch.compile does; twice the arithmetic backward",
    "how the step divides among kernels": "roofline of the A100's data sheet (312 TFLOP/s, 1555 GB/s), scaled to the "
    "step",
    "a sync every 10 iterations": "train.py of nanoGPT: loss.item() every log_interval iterations, 10 by default",
    "host time between launches, 5 µs": "assumed; of the order of NVIDIA's figures for a launch with its overheads "
    "(developer.nvidia.com/blog/cuda-graphs)",
    "host time between iterations, 2 ms": "assumed: data loader and guards",
    "memory": "assumed: 124 M parameters with gradients and Adam's moments in 32 bit, and 10 GiB of activations",
}


def _gpt2_layer(*, backward: bool) -> list[Work]:
    tokens = _BATCH * _CONTEXT
    row = 2.0 * tokens * _WIDTH  # bytes of one activation of the model's width, in 16 bit

    def gemm(name: str, outputs: int, inputs: int) -> list[Work]:
        one = Work(name, 2.0 * tokens * outputs * inputs, 2.0 * (tokens * (outputs + inputs) + outputs * inputs))
        return (
            [Work(f"{name}_dgrad", one.flops, one.bytes), Work(f"{name}_wgrad", one.flops, one.bytes)]
            if (backward)
            else [one]
        )

    attention = 2.0 * _BATCH * _CONTEXT**2 * _WIDTH * (2.5 if backward else 1.0)  # causal: half of 4·B·T²·d
    suffix = "_backward" if backward else ""
    parts = [
        [Work(f"layer_norm{suffix}", 0, (3 if backward else 2) * row)],
        gemm("gemm_qkv", 3 * _WIDTH, _WIDTH),
        [Work(f"flash_attention{suffix}", attention, 4 * row)],
        gemm("gemm_projection", _WIDTH, _WIDTH),
        [Work(f"add_layer_norm{suffix}", 0, 4 * row)],
        gemm("gemm_up", 4 * _WIDTH, _WIDTH),
        [Work(f"gelu{suffix}", 0, (12 if backward else 8) * row)],
        gemm("gemm_down", _WIDTH, 4 * _WIDTH),
    ]
    ordered = reversed(parts) if backward else parts
    return [work for part in ordered for work in part]


def _gpt2_step() -> list[Work]:
    tokens = _BATCH * _CONTEXT
    row = 2.0 * tokens * _WIDTH
    logits = 2.0 * tokens * _VOCABULARY
    head = 2.0 * tokens * _VOCABULARY * _WIDTH
    parameters = 124e6
    return [
        Work("embedding", 0, 3 * row),
        *[work for _ in range(_LAYERS) for work in _gpt2_layer(backward=False)],
        Work("gemm_head", head, logits + row),
        Work("cross_entropy", 0, 2 * logits),
        Work("cross_entropy_backward", 0, 2 * logits),
        Work("gemm_head_dgrad", head, logits + row),
        Work("gemm_head_wgrad", head, logits + row),
        *[work for _ in range(_LAYERS) for work in _gpt2_layer(backward=True)],
        Work("embedding_backward", 0, 3 * row),
        *[Work("gradient_norm", 0, 4 * parameters / 4)] * 4,
        *[Work("adamw", 0, 28 * parameters / 4)] * 4,
        *[Work("zero_gradients", 0, 4 * parameters / 4)] * 4,
    ]


def training() -> Trace:
    """Return a training loop of GPT-2 (124 M): device-bound, launches far ahead, a sync every ten iterations."""
    table = _Table()
    numbers = table.scaled(_gpt2_step(), A100, 135 * MS)
    batch = _BATCH * _CONTEXT * 8
    iteration: list[Item] = [
        Event("begin", ("iteration",)),
        Event("cpu", (2 * MS,)),
        Event("copy", (0, "htod", batch)),
        Event("copy", (0, "htod", batch)),
        *_launches(numbers, 5 * US),
        Event("end", ("iteration",)),
    ]
    head: list[Item] = [Event("alloc", (0, "linear", 2 * GIB)), Event("alloc", (1, "linear", 10 * GIB))]
    ten = Repeat(0, (Repeat(10, tuple(iteration)), Event("copy-sync", ("dtoh", 4))))
    header = _header("training", "a training loop: GPT-2 124M, batch 12, torch.compile, A100", _TRAINING_SOURCES)
    return Trace(header, tuple(table.kernels), (), ("legacy",), ((*head, ten),))


# ---- an inference server ----

_PARAMETERS, _MODEL_LAYERS, _MODEL_WIDTH, _KV_WIDTH, _FEED_FORWARD = 8.03e9, 32, 4096, 1024, 14336
_MODEL_VOCABULARY = 128256
_PROMPT, _TOKENS = 256, 8
_SERVER_SOURCES = {
    "a decode step, 5.1 ms": "cloudai.pt/tag/cuda-graphs: Llama 3.1 8B on an H100 SXM5, one decode step 8.4 ms eager, "
    "5.1 ms as a CUDA graph; 16 GB of weights at the data sheet's 3.35 TB/s are 4.8 ms",
    "kernels of a step": "llama.py of vLLM: ten per layer once its norms and its MLP are fused; 32 layers, width 4096 "
    "(config.json of Llama 3.1 8B)",
    "host time between decode steps, 3.9 ms": "blog.vllm.ai/2024/09/05/perf-update.html: Llama 3 8B on an H100, 29 % "
    "of the time on scheduling and 38 % on the device: 5.1 ms × 29 / 38",
    "the prefill, eager": "2 × parameters × 256 tokens at half of the H100's 989 TFLOP/s: 8.3 ms",
    "a request every 150 ms, 256 tokens in, 8 out": "assumed: a little under half of the device",
    "host time between eager launches, 5 µs": "assumed; as in training.trace",
    "memory": "16 bit weights of 8 B parameters, and assumed 30 GiB of KV cache",
}


def _llama_layer(tokens: int) -> list[Work]:
    width, kv, up = _MODEL_WIDTH, _KV_WIDTH, _FEED_FORWARD
    row = 2.0 * tokens * width

    def gemm(name: str, outputs: int, inputs: int) -> Work:
        return Work(name, 2.0 * tokens * outputs * inputs, 2.0 * (outputs * inputs + tokens * (outputs + inputs)))

    return [
        Work("add_rms_norm", 0, 3 * row),
        gemm("gemm_qkv", width + 2 * kv, width),
        Work("rotary_embedding", 0, 2 * row),
        Work("cache_write", 0, 2 * row * kv / width),
        Work("paged_attention", 4.0 * tokens * _PROMPT * width, 2.0 * _PROMPT * 2 * kv + 2 * row),
        gemm("gemm_output", width, width),
        Work("add_rms_norm", 0, 3 * row),
        gemm("gemm_gate_up", 2 * up, width),
        Work("silu_and_mul", 0, 6.0 * tokens * up),
        gemm("gemm_down", width, up),
    ]


def _llama_step(tokens: int) -> list[Work]:
    head = Work("gemm_head", 2.0 * _MODEL_VOCABULARY * _MODEL_WIDTH, 2.0 * _MODEL_VOCABULARY * _MODEL_WIDTH)
    embedding = Work("embedding", 0, 4.0 * tokens * _MODEL_WIDTH)
    return [embedding, *[work for _ in range(_MODEL_LAYERS) for work in _llama_layer(tokens)], head]


def server() -> Trace:
    """Return an inference server: requests on time, an eager prefill, then a graph per token and a copy back."""
    table = _Table()
    prefill_ns = 2 * _PARAMETERS * _PROMPT / (H100.flops / 2)
    prefill = table.scaled(_llama_step(_PROMPT), H100, prefill_ns)
    decode = tuple(table.scaled(_llama_step(1), H100, 5.1 * MS))
    sampling = [table.number(Kernel(5_000, name)) for name in ("penalties", "softmax", "top_p", "argmax")]
    token: list[Item] = [
        Event("begin", ("token",)),
        Event("copy", (0, "htod", 4096)),
        Event("run", (0, 0)),
        *_launches(sampling, 5 * US),
        Event("copy", (0, "dtoh", 8)),
        Event("sync-stream", (0,)),
        Event("end", ("token",)),
        Event("cpu", (round(5.1 * 29 / 38 * 10) * 100 * US,)),
    ]
    request: list[Item] = [
        Event("every", (150 * MS,)),
        Event("begin", ("request",)),
        Event("cpu", (1 * MS,)),
        Event("copy", (0, "htod", _PROMPT * 8)),
        *_launches(prefill, 5 * US),
        Event("sync-stream", (0,)),
        Repeat(_TOKENS, tuple(token)),
        Event("end", ("request",)),
    ]
    head: list[Item] = [Event("alloc", (0, "linear", 16 * GIB)), Event("alloc", (1, "linear", 30 * GIB))]
    what = "an inference server: Llama 3.1 8B, one request at a time, CUDA graphs, H100"
    thread: tuple[Item, ...] = (*head, Repeat(0, tuple(request)))
    header = _header("server", what, _SERVER_SOURCES)
    return Trace(header, tuple(table.kernels), (decode,), ("nonblocking",), (thread,))


# ---- a launch-bound loop ----

_LOOP_SOURCES = {
    "kernels of 2.9 µs, twenty and a sync": "developer.nvidia.com/blog/cuda-graphs: 20 short kernels a step, 2.9 µs "
    "each; 9.6 µs a kernel with a sync after each, 3.8 µs when launches overlap, 3.4 µs as a graph",
    "host time between launches, 1.3 µs": "the same: 3.8 µs from launch to launch, less the 2.5 µs that a launch "
    "itself takes, which the replay's driver spends again",
}


def launch_bound() -> Trace:
    """Return a loop of short kernels that waits for the host, not for the device."""
    table = _Table()
    number = table.number(Kernel(2_900, "short_kernel", "512x1x1"))
    step: tuple[Item, ...] = (
        Event("begin", ("step",)),
        Event("launch", (0, number, 20, 1_300)),
        Event("sync-stream", (0,)),
        Event("end", ("step",)),
    )
    header = _header("launch-bound", "a launch-bound loop: 20 kernels of 2.9 µs, then a sync", _LOOP_SOURCES)
    thread: tuple[Item, ...] = (Event("alloc", (0, "linear", 4_000_000)), Repeat(0, step))
    return Trace(header, tuple(table.kernels), (), ("blocking",), (thread,))


def _header(name: str, what: str, sources: dict[str, str]) -> dict[str, object]:
    return {"sharepod_trace": 1, "name": name, "origin": "synthesised", "what": what, "sources": sources}


SHAPES = (training, server, launch_bound)
