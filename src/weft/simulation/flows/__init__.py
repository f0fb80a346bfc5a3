"""Flows in time over the links of a fabric."""
