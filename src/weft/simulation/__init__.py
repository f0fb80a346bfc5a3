"""The flow-level clock.

Functions raise ``BadInput`` for what they cannot use.
"""
