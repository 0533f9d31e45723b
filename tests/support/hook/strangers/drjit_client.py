"""A program on Dr.Jit: arrays to the device and back, kernels that it compiles, and reductions."""

import json

import drjit as dr
import numpy as np
from drjit.cuda import Float, UInt32

sent = np.arange(1 << 14, dtype=np.float32)
values = Float(sent)
copied = bool((values.numpy() == sent).all())
with dr.scoped_set_flag(dr.JitFlag.KernelHistory, True):
    for factor in range(5):
        dr.eval(dr.sin(values) * factor + 1)
    dr.eval(dr.sum(values), dr.gather(Float, values, dr.arange(UInt32, 100)))
    dr.sync_thread()
    kernels = len(dr.kernel_history())
print(json.dumps({"copied": copied, "kernels": kernels}))
