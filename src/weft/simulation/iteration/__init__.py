"""One training iteration on a fabric, flow by flow."""
