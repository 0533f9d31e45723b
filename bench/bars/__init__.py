"""The bars of the design: what each measures, on the simulated GPU or on a real one."""
