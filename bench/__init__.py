"""Measures every bar of the design and prints the table: `python -m bench`. Nothing of the product imports it."""
