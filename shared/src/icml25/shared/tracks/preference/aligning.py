"""The policy of the problem "alignment", its training by any loss on scored lists, and the solver that does it."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure
from icml25.shared.protocols.alignment import filters

__all__ = ["AlignmentSolver", "kl_regularised", "load", "train"]

STEPS = {"smoke": 20, "quick": 600, "paper": 6000}
BATCH = 64


def load():
    """Load what the clock should not see."""
    import torch

    torch.ones(1, requires_grad=True).sum().backward()


def train(arrays, params, loss):
    """Train log pi(y|x) - log pi_ref(y|x) = theta . features(x, y) + const by Adam.

    Parameters
    ----------
    arrays : the problem's.
    params : ``filter`` (which prompts are used), ``lr`` and ``beta``, ``budget`` and ``seed``.
    loss : callable (implicit rewards (B, n) = beta * log-ratio up to a constant a prompt, scores (B, n), generator) -> ().

    Returns
    -------
    dict: ``log_ratio`` (T, A) of the test candidates, and ``prompts_used``.
    """
    import torch

    torch.set_num_threads(1)
    keep = np.ones(len(arrays["x"]), bool) if params["filter"] == "none" else arrays[f"keep_{params['filter']}"]

    def features(x, y):
        x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)
        return torch.cat([torch.einsum("pd,pnk->pndk", x, y).flatten(2), y, y**2], -1)

    inputs = features(arrays["x"][keep], arrays["y"][keep])
    scores = torch.as_tensor(arrays["scores"][keep], dtype=torch.float32)
    generator = torch.Generator().manual_seed(params["seed"])
    theta = torch.zeros(inputs.shape[-1], requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=params["lr"])
    steps = STEPS[params["budget"]]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss(params["beta"] * (inputs[batch] @ theta), scores[batch], generator).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        log_ratio = features(arrays["x_test"], arrays["y_test"]) @ theta
    return {"log_ratio": log_ratio.numpy(), "prompts_used": int(keep.sum())}


def kl_regularised(params, reward):
    """Loss E_pi[-reward(scores)] + beta KL(pi || pi_ref), exact on a prompt's answers, which are samples of pi_ref.

    ``reward`` maps scores (B, n) to rewards (B, n).
    """
    import math

    def loss(rewards, scores, _):
        log_pi = (rewards / params["beta"]).log_softmax(1)
        divergence = log_pi + math.log(log_pi.shape[1])
        return (log_pi.exp() * (params["beta"] * divergence - reward(scores))).sum(1).mean()

    return loss


class AlignmentSolver(BaseSolver):
    """Runs ``align(arrays, params)`` of ``file`` in a process of its own; its own parameters are in params.

    ``beta`` and ``lr`` of every loss are the best of {0.03, 0.1, 0.3, 1, 3} x {0.03, 0.1} by the win rate at equal KL on
    seeds 1000 and 1001, without a filter.
    """

    sampling_strategy = "run_once"
    problems = ("alignment",)
    parameters = {"filter": ["none", *filters()]}  # noqa: RUF012
    file = __file__
    beta: float
    lr: float

    def skip(self, problem, budget, **_):
        """Other problems; a smoke run needs no control."""
        if problem != "alignment":
            return True, "trains no policy there"
        return budget == "smoke" and self.filter.endswith("_random"), "left out of this budget"

    def set_objective(self, **problem):
        """Note arrays and numbers."""
        self.arrays = {k: v for k, v in problem.items() if isinstance(v, np.ndarray)}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))}
        self.params |= {"lr": self.lr, "beta": self.beta, **{name: getattr(self, name) for name in self.parameters}}

    def run(self, _):
        """Train in a process of its own."""
        self.result = measure(self.file, "align", self.arrays, self.params)

    def get_result(self):
        """Return log-ratios, seconds and memory."""
        return self.result
