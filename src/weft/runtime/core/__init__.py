"""What every layer works with: the grid, its collectives, number formats and stored parameters."""
