"""Kubelet's device plugin protocol: registration, allocation, and what kubelet says of its pods."""
