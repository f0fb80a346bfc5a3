"""Measuring: the present machine, collectives without hardware."""
