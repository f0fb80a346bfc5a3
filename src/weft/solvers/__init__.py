"""Numeric kernels that know no networks: max-min fair sharing and its certificate."""
