"""Plackett-Luce: the likelihood of the whole ranking."""

from icml25.shared.tracks.preference.ranking_model import RankingSolver, load, rank


def warm_up():
    """Load what the clock should not see."""
    load()


def fit(arrays, params):
    """Minimise the negative log-probability of the ranking, first place first."""

    def loss(rewards, scores, _):
        ranked = rewards.gather(1, scores.argsort(1, descending=True))
        rest = ranked.flip(1).logcumsumexp(1).flip(1)  # of the places from each on
        return (rest - ranked).sum(1)

    return rank(arrays, params, loss)


class Solver(RankingSolver):
    """Plackett-Luce over all answers of a prompt."""

    name = "PL reward"
    file = __file__
