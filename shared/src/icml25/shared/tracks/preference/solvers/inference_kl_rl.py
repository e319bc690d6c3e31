"""KL-regularised alignment to a reward that knows nothing of the procedure: raw, standardised by prompt, or its global quantile."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def align(arrays, params):
    """The exact KL-RL policies at the KL asked for."""
    from icml25.shared.protocols.inference_alignment import policy_at_kl

    p, r = arrays["pi_ref"], arrays["reward"]
    if params["reward"] == "standardised":
        mean = (p * r).sum(1, keepdims=True)
        r = (r - mean) / np.sqrt((p * (r - mean) ** 2).sum(1, keepdims=True))
    elif params["reward"] == "global quantile":
        order = np.argsort(r, axis=None)
        mass = p.ravel()[order] / len(p)
        quantile = np.empty(r.size)
        quantile[order] = np.cumsum(mass) - mass / 2
        r = quantile.reshape(r.shape)
    return {"policy": policy_at_kl(p, r, params["kl"])}


class Solver(BaseSolver):
    """The exact solution of KL-regularised reward maximisation."""

    name = "KL-RL"
    sampling_strategy = "run_once"
    problems = ("inference",)
    parameters = {"reward": ["raw", "standardised", "global quantile"]}  # noqa: RUF012

    def skip(self, problem, question="", **_):
        """Run where prompts differ."""
        return problem != "inference" or question != "world", "for inference_world"

    def set_objective(self, pi_ref=None, reward=None, kl=0.0, **_):
        """Note the problem."""
        self.arrays = {"pi_ref": pi_ref, "reward": reward}
        self.params = {"reward": self.reward, "kl": kl}

    def run(self, _):
        """Align in a process of its own."""
        self.result = measure(__file__, "align", self.arrays, self.params)

    def get_result(self):
        """Return policies, seconds and memory."""
        return self.result
