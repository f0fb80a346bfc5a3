"""What fails, how often, and what it costs: classes of failures and a renewal model.

Functions raise ``BadInput`` for input that cannot be used.
"""
