"""Why a pod is where it is, or waits; how the cluster stands."""
