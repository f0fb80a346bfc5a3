"""weft.collectives"""
