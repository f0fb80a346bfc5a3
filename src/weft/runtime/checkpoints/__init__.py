"""Checkpoints: what a training run saves, reads back and exports."""
