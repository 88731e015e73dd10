"""`python -m toprune` is the command `toprune`."""

from toprune.cli import main

if __name__ == "__main__":
    main()
