"""weft.interop"""
