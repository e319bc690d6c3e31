"""Plackett-Luce on the whole list (DPO's own form for rankings)."""

from icml25.shared.tracks.preference.aligning import AlignmentSolver, load, train


def warm_up():
    """Load what the clock should not see."""
    load()


def align(arrays, params):
    """Minimise the negative log-probability of the ranking, first place first."""

    def loss(rewards, scores, _):
        ranked = rewards.gather(1, scores.argsort(1, descending=True))
        rest = ranked.flip(1).logcumsumexp(1).flip(1)  # of the places from each on
        return (rest - ranked).sum(1).mean()

    return train(arrays, params, loss)


class Solver(AlignmentSolver):
    """Plackett-Luce over all answers of a prompt."""

    name = "PL"
    file = __file__
    beta = 3.0
    lr = 0.1
