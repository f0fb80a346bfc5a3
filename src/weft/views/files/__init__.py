"""Results as files: JSON, CSV and timelines."""
