"""Reports as web pages: one file each, which asks for nothing else and works from a disk."""
