"""Training software: the launch files of a layout, and the layout of an existing run."""
