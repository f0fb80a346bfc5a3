"""The commands, each with its options, its function for `import weft` and its command line."""
