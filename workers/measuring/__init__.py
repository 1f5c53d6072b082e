"""One probe: what its ranks are told, what they wrote, and the measurement that follows."""
