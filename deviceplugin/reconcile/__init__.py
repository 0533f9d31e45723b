"""What happens after a container has its share: changed terms, its end, and what its programs do."""
