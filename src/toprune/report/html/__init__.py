"""Reports as web pages: one self-contained file each, without requests."""
