"""What the API server asks before it makes a pod: pods written for other sharing systems become ours."""
