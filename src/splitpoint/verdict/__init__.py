"""Split or mixed, with reasons: walls, conditions, comparisons, and what would change it."""
