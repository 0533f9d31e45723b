"""A program on GsTaichi or its successor Quadrants: memory set, copied and read, kernels, and Quadrants' graphs."""

import importlib
import json
import sys

import numpy as np

ti = importlib.import_module(sys.argv[1])
ti.init(arch=ti.cuda, offline_cache=False)
arch = str(ti.lang.impl.current_cfg().arch)
if arch != "Arch.cuda":
    sys.exit(f"it fell back to {arch}")  # there its loop would never end: only a graph of the simulator leaves it
COUNT = 1 << 14
Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)


@ti.kernel
def add(values: Floats, amount: ti.f32):
    for i in values:
        values[i] = values[i] * 2.0 + amount


first = ti.ndarray(dtype=ti.f32, shape=(COUNT,))
second = ti.ndarray(dtype=ti.f32, shape=(COUNT,))
first.fill(7.0)
read = first[5]
second.copy_from(first)
sent = np.arange(COUNT, dtype=np.float32)
kept = sent.copy()
for amount in range(10):
    add(first, amount)
add(sent, 1.0)  # a host array goes to the device and comes back
told = {"arch": arch, "read": read, "copied": bool((sent == kept).all())}

if sys.argv[1] == "quadrants":
    Counter = ti.types.ndarray(dtype=ti.i32, ndim=0)

    @ti.kernel(graph=True)
    def twice(values: Floats):
        for i in values:
            values[i] = values[i] * 2.0
        for i in values:
            values[i] = values[i] + 1.0

    @ti.kernel(graph=True)
    def loop(values: Floats, left: Counter):
        while ti.graph.do_while(left):
            for i in values:
                values[i] = values[i] * 2.0
            for _ in range(1):
                left[None] = left[None] - 1

    left = ti.ndarray(dtype=ti.i32, shape=())
    for _ in range(3):
        twice(first)
        loop(first, left)
ti.sync()
print(json.dumps(told))
