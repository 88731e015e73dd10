"""Helpers that several tests share: tiny models, toy bundles, datasets, command calls."""
