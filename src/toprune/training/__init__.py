"""Everything that fits weights, masks, probes and thresholds."""
