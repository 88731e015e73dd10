"""`python -m toprune.cli`: for torchrun, which starts modules."""

from toprune.cli import main

if __name__ == "__main__":
    main()
