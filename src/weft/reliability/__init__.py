"""What fails, how often, and what it costs: classes of failures, a renewal model and a Monte Carlo of it."""
