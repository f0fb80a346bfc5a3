"""Studies: points over axes, computed on one machine or many, kept as they come, written in order."""
