"""Jobs, hosts, routes and times chosen together for one site."""
