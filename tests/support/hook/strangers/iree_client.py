"""A program on IREE: a module that it compiles for CUDA, arrays to the device and back."""

import json

import numpy as np
from iree import compiler, runtime

MODULE = """
func.func @scale(%given: tensor<4096xf32>) -> (tensor<4096xf32>, tensor<4096xf32>) {
  %two = arith.constant dense<2.0> : tensor<4096xf32>
  %scaled = arith.mulf %given, %two : tensor<4096xf32>
  return %given, %scaled : tensor<4096xf32>, tensor<4096xf32>
}
"""

binary = compiler.compile_str(MODULE, target_backends=["cuda"], extra_args=["--iree-cuda-target=sm_80"])
config = runtime.Config("cuda")
module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary), config)
sent = np.arange(4096, dtype=np.float32)
copied = [bool((module.scale(sent * factor)[0].to_host() == sent * factor).all()) for factor in range(5)]
print(json.dumps({"device": str(config.device), "copied": copied == [True] * 5}))
