"""The report of a run: numbers, differences between dense and pruned, pages, model card."""
