"""The flow-level clock."""
