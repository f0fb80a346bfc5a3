"""Text of foreign files: XML, YAML and flat settings, read within bounds."""
