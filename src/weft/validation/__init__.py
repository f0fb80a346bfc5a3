"""Predictions against published, measured training runs."""
