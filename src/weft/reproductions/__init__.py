"""Published models and figures, reproduced."""
