"""weft.search"""
