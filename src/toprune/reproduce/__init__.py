"""The tables and figures of the ToP paper, each with one command."""
