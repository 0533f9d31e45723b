"""What others ask of the agent, and what the agent tells them: the gRPC services, and the feed to schedulers."""
