"""What fails, how often, and what it costs: classes of failures and a renewal model."""
