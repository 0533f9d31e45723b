"""The `sharepod` command: what a person types. Speaks to the agent over gRPC and draws what it says.

Pure modules (quantities, model, account, tables, turns, trace, picture) turn values into text and never touch the
network, the clock or the process; `client` is the only one that sees protobuf messages; `launch` is the only one that
replaces the process.
"""
