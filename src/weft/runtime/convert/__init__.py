"""Models that others wrote, put onto the grid."""
