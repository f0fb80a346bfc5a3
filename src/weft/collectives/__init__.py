"""What a collective costs, which messages it consists of, and how it is scheduled over a network.

Functions raise ``BadInput`` for what they cannot use.
"""
