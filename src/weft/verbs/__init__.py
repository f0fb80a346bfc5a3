"""The verbs of ``import weft``: each takes names, files or objects, and options, and returns a result."""
