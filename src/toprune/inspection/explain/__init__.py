"""Which tokens leave at which layer, for one text or many."""
