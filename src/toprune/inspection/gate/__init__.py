"""Is a bundle good enough to ship? Checks with limits, for people and for CI."""
