"""What goes on after a container has its share: changes, ends, and what its programs do."""
