"""What the agents of the nodes tell, as it comes in."""
