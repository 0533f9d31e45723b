"""The `sharepod` command, which a user types. It asks the agent over gRPC and draws the answer.

Modules that call themselves pure turn values into text, and never touch the network, the clock or the process. Only
`client` speaks gRPC, and only `launch` replaces the process.
"""
