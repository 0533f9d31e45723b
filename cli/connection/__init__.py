"""How the command finds the agent, starts a private one, and asks the cluster."""
