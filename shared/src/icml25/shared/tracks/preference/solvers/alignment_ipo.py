"""Identity preference optimisation on the best and the worst answer (Azar et al., 2024)."""

from icml25.shared.tracks.preference.aligning import AlignmentSolver, load, train


def warm_up():
    """Load what the clock should not see."""
    load()


def align(arrays, params):
    """Minimise (h - 1 / (2 beta))^2 of the difference h of log-ratios: beta^2 (h - 1/(2 beta))^2 = (beta h - 1/2)^2."""

    def loss(rewards, scores, _):
        best, worst = scores.argmax(1, keepdim=True), scores.argmin(1, keepdim=True)
        return (rewards.gather(1, best) - rewards.gather(1, worst) - 0.5).square().mean()

    return train(arrays, params, loss)


class Solver(AlignmentSolver):
    """IPO, a regression of the margin."""

    name = "IPO"
    file = __file__
    beta = 0.3
    lr = 0.1
