"""The network of the problem "ranking", its training by any loss on scored lists, and the solver that does it."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

__all__ = ["RankingSolver", "load", "rank"]

STEPS = {"smoke": 20, "quick": 250, "paper": 2500}
BATCH = 64
WIDTH = 64
LR = 0.005


def load():
    """Load what the clock should not see."""
    import torch

    torch.ones(1, requires_grad=True).sum().backward()


def rank(arrays, params, loss):
    """Rewards of the test answers of a network fitted in each world, or the gradients of the loss.

    Parameters
    ----------
    arrays, params : the problem's; params with ``budget`` and ``seed``.
    loss : callable (rewards (B, n), scores (B, n), generator) -> (B,), a loss a prompt.

    Returns
    -------
    dict: ``rewards`` (W, T, n), or ``gradient_<n>`` (rows, n).
    """
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(params["seed"])
    if params["world"] == "gradients":
        return {f"gradient_{n}": _gradient(arrays, n, loss, generator) for n in arrays["sizes"]}
    worlds = [arrays[name] for name in ("features", "scores", "test_features")]
    return {"rewards": np.stack([_fit(*world, params, loss, generator) for world in zip(*worlds, strict=True)])}


def _fit(features, scores, test_features, params, loss, generator):
    """Adam on a tanh network of one hidden layer, which can't be linear as the scores are."""
    import torch
    from torch.nn.init import trunc_normal_

    x, y = torch.from_numpy(features), torch.from_numpy(scores)
    network = torch.nn.Sequential(torch.nn.Linear(x.shape[-1], WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    for layer in (network[0], network[2]):
        trunc_normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
        torch.nn.init.zeros_(layer.bias)
    weights = list(network.parameters())
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    for step in range(1, STEPS[params["budget"]] + 1):
        batch = torch.randint(len(x), (BATCH,), generator=generator)
        value = loss(network(x[batch])[..., 0], y[batch], generator).mean()
        gradients = torch.autograd.grad(value, weights)
        with torch.no_grad():  # Adam in three lines: torch.optim loads a compiler first, seconds in each process
            for w, g, (mean, square) in zip(weights, gradients, moments, strict=True):
                mean.lerp_(g, 0.1)
                square.lerp_(g * g, 0.001)
                w -= LR * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    with torch.no_grad():
        return network(torch.from_numpy(test_features))[..., 0].numpy()


def _gradient(arrays, n, loss, generator):
    import torch

    rewards = torch.from_numpy(arrays[f"rewards_{n}"]).requires_grad_()
    loss(rewards, torch.from_numpy(arrays[f"scores_{n}"]), generator).sum().backward()
    return rewards.grad.numpy()


class RankingSolver(BaseSolver):
    """Runs ``fit(arrays, params)`` of ``file`` in a process of its own; its own parameters are in params."""

    sampling_strategy = "run_once"
    problems = ("ranking",)
    file = __file__

    def skip(self, problem, world="", **_):
        """Other problems, and the timing of pairs against lists."""
        if problem != "ranking":
            return True, "fits no reward there"
        return world == "cost", "is timed by others, as their peer"

    def set_objective(self, **problem):
        """Note arrays and numbers."""
        self.arrays = {k: v for k, v in problem.items() if isinstance(v, np.ndarray)}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))}
        self.params |= {name: getattr(self, name) for name in self.parameters}

    def run(self, _):
        """Fit in a process of its own."""
        self.result = measure(self.file, "fit", self.arrays, self.params)

    def get_result(self):
        """Return rewards, seconds and memory."""
        return self.result
