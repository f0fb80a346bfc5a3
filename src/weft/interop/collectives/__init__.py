"""Collective algorithms as the libraries that run them read them: MSCCL, MSCCL++, NCCL's tuner."""
