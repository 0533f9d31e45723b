"""Speaks to Kubernetes: one client, one informer, one reader of pods, one of quantities.

It knows the API server and the shape of its objects. It does not know what an annotation or a resource means for a
share: that belongs to the device plugin, the scheduler and the webhook, which use this room.
"""
