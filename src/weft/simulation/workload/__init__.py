"""A workload in time over the dimensions of a network."""
