"""The device plugin: turns what pods ask for into shares of the node's agent, and puts them into containers."""
