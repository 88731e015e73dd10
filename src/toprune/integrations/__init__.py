"""Doors into other libraries: their classes and methods over a bundle's file, without torch."""
