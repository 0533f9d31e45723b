"""The same bars on a real GPU, with nothing but gcc and Python's standard library: see README.md."""
