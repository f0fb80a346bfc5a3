"""Collectives as messages between ranks."""
