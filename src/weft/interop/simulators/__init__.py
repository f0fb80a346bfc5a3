"""Inputs of other simulators."""
