"""Many layouts of a job on one fabric, and the traffic of a layout."""
