"""The bars of the design, and how each is measured, on the simulated GPU or on a real one."""
