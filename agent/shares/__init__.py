"""The shares of a node: their terms, who owns them, where they are kept, and what their programs report."""
