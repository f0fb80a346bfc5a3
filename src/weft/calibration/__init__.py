"""Measured times in, Weft's models of the machine out: tiers of a cluster and constants."""
