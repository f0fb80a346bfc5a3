"""weft.estimate"""
