"""Jobs, hosts, routes and times chosen together for one site.

Functions raise ``BadInput`` for input that cannot be used.
"""
