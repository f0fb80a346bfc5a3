"""One training run: ranks, data, pipeline, gradients, optimizer and its folder."""
