"""weft.cli"""
