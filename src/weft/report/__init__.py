"""weft.report"""
