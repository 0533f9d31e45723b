"""The language between processes that share no region: ``v1.proto`` and the code generated from it at build.

The generated modules (``v1_pb2``, ``v1_pb2_grpc``) are not committed. Only the ``.proto`` is written by hand.
"""
