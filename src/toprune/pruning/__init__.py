"""Running a transformer under a plan: tokens, attention, scores and policies."""
