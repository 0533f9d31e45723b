"""The `sharepod` command, which a user types. It asks the agent over gRPC and draws the answer.

Pure modules (quantities, model, account, tables, turns, trace, picture) turn values into text, and never touch the
network, the clock or the process. Only `client` sees protobuf messages, and only `launch` replaces the process.
"""
