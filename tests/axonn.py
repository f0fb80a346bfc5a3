"""What AxoNN issues, counted with its own code."""

REFERENCE_COUNTS = {
    (2, 2, 2, 1): (20, 57_344),
    (2, 2, 1, 2): (12, 45_056),
    (4, 1, 2, 1): (16, 40_960),
    (1, 4, 1, 2): (8, 61_440),
    (1, 1, 8, 1): (12, 61_440),
    (8, 1, 1, 1): (4, 32_768),
    (1, 1, 2, 4): (16, 122_880),
    (2, 1, 2, 2): (20, 69_632),
}
"""Collectives and elements of one block by (x, y, z, data): axonn.md, section 5.B.

Its x and y are ours (x splits the outputs of normal layers); ``G_intra_x`` of AxoNN's tutorial is our y.  No
other mapping gives all eight: swapped, (8, 1, 1, 1) would reduce 98,304 elements.
"""
