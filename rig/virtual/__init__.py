"""The policy in virtual time: programs on one device, whose turns the real policy's C decides."""
