"""Which budget runs as the queue grows: accuracy gives a little so that latency stays."""

from collections.abc import Sequence

from toprune.errors import UserError
from toprune.plan.budget import Budget

RELAX = 0.5  # of the fill at which a budget was tightened: below it the looser one comes back


def parse_shed(words: str) -> tuple[str, ...]:
    """Budgets like `2x,3x,5x`, each tighter than the one before."""
    budgets = tuple(word.strip() for word in words.split(","))
    shares = [Budget.parse(word).sparsity for word in budgets]
    if len(budgets) < 2 or sorted(set(shares)) != shares:
        raise UserError(f"--shed {words}: give two budgets or more, the loosest first: 2x,3x,5x")
    return budgets


class Shed:
    """Chooses one of several budgets by how full the queue is.

    With n budgets the next one begins when another n-th of the queue is full. It ends when the
    queue has fallen to half of that, so that the choice does not flutter.
    """

    def __init__(self, budgets: Sequence[str]):
        self.budgets, self.level = tuple(budgets), 0

    def choose(self, fill: float) -> int:
        """The number of the budget for the next batch; 0 is the loosest.

        Args:
            fill: share of the queue that is taken.
        """
        count = len(self.budgets)
        while self.level + 1 < count and fill >= (self.level + 1) / count:
            self.level += 1
        while self.level > 0 and fill < RELAX * self.level / count:
            self.level -= 1
        return self.level
