"""Traces of other tools: Chakra's execution traces, and what PyTorch's profiler records."""
