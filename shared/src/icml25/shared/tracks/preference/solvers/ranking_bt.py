"""Bradley-Terry on the best answer and one other, as DPO takes pairs from lists: the worst, or a random one."""

from icml25.shared.tracks.preference.ranking_model import RankingSolver, load, rank


def warm_up():
    """Load what the clock should not see."""
    load()


def fit(arrays, params):
    """Minimise -log sigma(r(best) - r(other))."""
    import torch
    from torch.nn.functional import softplus

    def loss(rewards, scores, generator):
        best = scores.argmax(1, keepdim=True)
        if params["negative"] == "worst":
            other = scores.argmin(1, keepdim=True)
        else:
            steps = torch.randint(1, scores.shape[1], best.shape, generator=generator)
            other = (best + steps) % scores.shape[1]
        return softplus(rewards.gather(1, other) - rewards.gather(1, best))[:, 0]

    return rank(arrays, params, loss)


class Solver(RankingSolver):
    """Bradley-Terry on a pair of each list."""

    name = "BT reward"
    parameters = {"negative": ["worst", "random"]}  # noqa: RUF012
    file = __file__
