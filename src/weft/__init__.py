"""Weft plans, designs, schedules, routes and runs the training of large models on GPU networks."""
