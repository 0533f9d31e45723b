"""Kubelet's device plugin protocol: registration, allocation, and what kubelet tells of its pods."""
