"""Traffic of jobs as other tools describe it."""
