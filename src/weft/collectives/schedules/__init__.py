"""Collectives over several dimensions of a network: policies, bounds, and the queues that time them."""
