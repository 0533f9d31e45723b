"""Answers the API server before it makes a pod: pods written for other sharing systems become ours."""
