"""A program on cuda.core: a kernel that NVRTC compiles, memory of a pool, pinned memory, and a captured graph."""

import json

import numpy as np
from cuda.core import (
    Device,
    DeviceMemoryResource,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    Program,
    ProgramOptions,
    launch,
)

SOURCE = 'extern "C" __global__ void scale_100us(float *data, float factor) { data[threadIdx.x] *= factor; }'
BYTES = 1 << 16
device = Device(0)
device.set_current()
stream = device.create_stream()
code = Program(SOURCE, code_type="c++", options=ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin")
kernel = code.get_kernel("scale_100us")

pinned = LegacyPinnedMemoryResource()
sent, back = pinned.allocate(BYTES, stream=stream), pinned.allocate(BYTES, stream=stream)
first, second = (DeviceMemoryResource(device).allocate(BYTES, stream=stream) for _ in range(2))
numbers = np.from_dlpack(sent).view(np.uint8)
numbers[:] = np.arange(BYTES) % 251
first.copy_from(sent, stream=stream)
second.copy_from(first, stream=stream)
second.copy_to(back, stream=stream)
stream.sync()
copied = bool((np.from_dlpack(back).view(np.uint8) == numbers).all())

config = LaunchConfig(grid=1, block=32)
builder = stream.create_graph_builder().begin_building()
for _ in range(5):
    launch(builder, config, kernel, first, np.float32(2))
graph = builder.end_building().complete()
begin, end = (device.create_event(EventOptions(timing_enabled=True)) for _ in range(2))
stream.record(begin)
for _ in range(4):
    launch(stream, config, kernel, first, np.float32(2))
    graph.launch(stream)
stream.record(end)
end.sync()
print(json.dumps({"name": device.name, "copied": copied, "in_order": end - begin >= 2.39}))
