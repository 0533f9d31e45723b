"""A program on slangpy's CUDA device: a shader that NVRTC compiles; buffers copied to, on and from the device."""

import json
import sys
from pathlib import Path

import numpy as np
import slangpy

SHADER = """
[shader("compute")]
[numthreads(64, 1, 1)]
void scale(uint3 id : SV_DispatchThreadID, uniform RWStructuredBuffer<float> data, uniform float factor)
{
    data[id.x] = data[id.x] * factor;
}
"""
COUNT = 1 << 12
here = Path(sys.argv[1])
(here / "scale.slang").write_text(SHADER)
device = slangpy.Device(type=slangpy.DeviceType.cuda, compiler_options={"include_paths": [here]})
sent = np.arange(COUNT, dtype=np.float32)
usage = slangpy.BufferUsage.unordered_access
usage |= slangpy.BufferUsage.copy_source | slangpy.BufferUsage.copy_destination
first = device.create_buffer(element_count=COUNT, struct_size=4, usage=usage, data=sent)
second = device.create_buffer(element_count=COUNT, struct_size=4, usage=usage)
encoder = device.create_command_encoder()
encoder.copy_buffer(second, 0, first, 0, sent.nbytes)
device.submit_command_buffer(encoder.finish())
kernel = device.create_compute_kernel(device.load_program("scale.slang", ["scale"]))
for _ in range(8):
    kernel.dispatch(thread_count=[COUNT, 1, 1], data=first, factor=2.0)
device.wait_for_idle()
copied = bool((second.to_numpy().view(np.float32) == sent).all())
print(json.dumps({"adapter": device.info.adapter_name, "copied": copied}))
