"""What switches and hosts take: addresses, forwarding tables, configurations and ports of planned routes."""
