"""Kahneman-Tversky optimisation: the best answers are desirable, the worst are not (Ethayarajh et al., 2024)."""

from icml25.shared.tracks.preference.aligning import AlignmentSolver, load, train


def warm_up():
    """Load what the clock should not see."""
    load()


def align(arrays, params):
    """Minimise 1 - sigma(beta (h - z)) for the best and 1 - sigma(beta (z - h)) for the worst, z = KL(pi || pi_ref).

    The answers of a prompt are samples of pi_ref, so that log pi - log pi_ref is the logit less log E_ref[exp(logit)] over
    them, and the batch's mean KL is computed instead of estimated from mismatched answers. No gradient goes through z.
    """
    import math

    import torch

    def loss(rewards, scores, _):
        beta = params["beta"]
        logits = rewards / beta
        log_ratio = logits - logits.logsumexp(1, keepdim=True) + math.log(logits.shape[1])
        with torch.no_grad():
            z = (logits.softmax(1) * log_ratio).sum(1).mean()
        best, worst = scores.argmax(1, keepdim=True), scores.argmin(1, keepdim=True)
        gain = torch.sigmoid(beta * (log_ratio.gather(1, best) - z)) + torch.sigmoid(
            beta * (z - log_ratio.gather(1, worst))
        )
        return (2 - gain).mean()

    return train(arrays, params, loss)


class Solver(AlignmentSolver):
    """KTO with equal weights."""

    name = "KTO"
    file = __file__
    beta = 1.0
    lr = 0.1
