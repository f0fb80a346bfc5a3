"""Layers that compute over the grid."""
