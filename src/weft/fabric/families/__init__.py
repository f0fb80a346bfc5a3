"""Generators of fabrics, one family of networks a module."""
