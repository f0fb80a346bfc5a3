"""Networks as other tools describe them: graphs, discovery, inventories, schedulers."""
