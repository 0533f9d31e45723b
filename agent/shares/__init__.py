"""The shares of a node: their terms, owners, accounts and files, and what their programs report."""
