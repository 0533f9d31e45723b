"""The shares and allocations of a node's pods, whoever asks for them."""
