"""Direct preference optimisation on the best and the worst answer (Rafailov et al., 2023)."""

from icml25.shared.protocols.alignment import filters
from icml25.shared.tracks.preference.aligning import AlignmentSolver, load, train


def warm_up():
    """Load what the clock should not see."""
    load()


def align(arrays, params):
    """Minimise -log sigma(r(best) - r(worst))."""
    from torch.nn.functional import logsigmoid

    def loss(rewards, scores, _):
        best, worst = scores.argmax(1, keepdim=True), scores.argmin(1, keepdim=True)
        return -logsigmoid(rewards.gather(1, best) - rewards.gather(1, worst)).mean()

    return train(arrays, params, loss)


class Solver(AlignmentSolver):
    """DPO, the Bradley-Terry loss on the best and the worst answer."""

    name = "DPO"
    file = __file__
    beta = 1.0
    lr = 0.03
    parameters = {"filter": ["none", *(name + control for name in filters() for control in ("", "_random"))]}  # noqa: RUF012
