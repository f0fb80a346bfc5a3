"""One training step of weft.runtime, operation by operation."""
