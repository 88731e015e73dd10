"""Hugging Face models: loading, heads, families, and models with parts cut out."""
