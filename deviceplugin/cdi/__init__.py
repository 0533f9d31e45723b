"""How a share gets into a container."""
