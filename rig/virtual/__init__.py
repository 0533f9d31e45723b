"""The policy in virtual time: programs take turns on one device, and the real policy's C decides the turns."""
