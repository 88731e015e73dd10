"""Timing, and methods side by side: bench, compare, sweep."""
