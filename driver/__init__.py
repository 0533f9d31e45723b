"""Facts about NVIDIA's driver, its functions and its types, for the hook and the simulated GPUs alike."""
