"""Datasets: files of any format, columns, labels, examples, splits, GLUE and SQuAD."""
