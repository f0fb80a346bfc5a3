"""Collective algorithms as the libraries that run them read them: MSCCL, NCCL's tuner."""
