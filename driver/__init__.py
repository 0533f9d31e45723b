"""What is known of NVIDIA's driver: its functions and types, for the hook and the simulated GPUs alike."""
