"""Plans, budgets, costs and schedules: the arithmetic of token pruning, without torch."""
