"""Files, progress bars and Ray: what every storey above may use."""
