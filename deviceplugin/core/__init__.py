"""The shares and allocations of a node's pods, whichever part asks for them."""
