"""PPO of stable-baselines3, the trusted implementation."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def warm_up():
    """Load what the clock should not see."""
    import stable_baselines3  # noqa: F401


def learn(arrays, params):
    """Train on CartPole-v1, and the mean return of the episodes that ended in each twentieth of the run."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Episodes(BaseCallback):
        """Steps at which episodes ended, and their returns."""

        def __init__(self):
            super().__init__()
            self.ends, self.returns = [], []

        def _on_step(self):
            for info in self.locals["infos"]:
                if "episode" in info:
                    self.ends.append(self.num_timesteps)
                    self.returns.append(info["episode"]["r"])
            return True

    env = make_vec_env("CartPole-v1", params["num_envs"], seed=params["seed"])
    network = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    options = {"n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": 1e-3, "gamma": 0.98}
    agent = PPO("MlpPolicy", env, policy_kwargs=network, seed=params["seed"], device="cpu", **options)
    seen = Episodes()
    agent.learn(params["steps"], callback=seen)
    span = np.minimum(np.array(seen.ends) * 20 // (params["steps"] + 1), 19)
    episodes = np.bincount(span, minlength=20)
    totals = np.bincount(span, weights=seen.returns, minlength=20)
    returns = np.where(episodes > 0, totals / np.maximum(episodes, 1), np.nan)
    return {"returns": returns[None], "episodes": episodes[None]}


class Solver(BaseSolver):
    """MlpPolicy of two layers of 64 on CartPole-v1."""

    name = "SB3 PPO"
    sampling_strategy = "run_once"
    problems = ("continual",)

    def skip(self, problem, kind="", **_):
        """Run where the world stays: its environment is gymnasium's."""
        return problem != "continual" or kind != "stationary", "trains on gymnasium's CartPole-v1 only"

    def set_objective(self, seed, steps, num_envs, **_):
        """Note the length of the run."""
        self.params = {"seed": int(seed), "steps": int(steps), "num_envs": int(num_envs)}

    def run(self, _):
        """Train in a process of its own."""
        self.result = measure(__file__, "learn", {}, self.params)

    def get_result(self):
        """Return the learning curve, seconds and memory."""
        return self.result
