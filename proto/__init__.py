"""The languages between processes that share no region: ours (``v1.proto``), and kubelet's two.

The generated modules (``v1_pb2``, ``v1_pb2_grpc``, …) are not committed. Only the ``.proto`` files are written by hand.
"""
