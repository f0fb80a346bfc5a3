"""Jobs replayed under routers."""
