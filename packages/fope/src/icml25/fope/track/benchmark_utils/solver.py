"""What all baselines of this track do: note the problem, train and read in a process of its own, return."""

from pathlib import Path

from icml25.shared.isolated import BaseSolver, measure


class PositionSolver(BaseSolver):
    """The decoder with the positions that ``position`` names."""

    sampling_strategy = "run_once"
    position = ""
    readings = ()  # further ways to read the same weights
    every_seed = False  # whether claims compare with it
    paper_only = False

    def skip(self, problem, budget, seed=0, corpus="", **_):
        """Keep the small budgets small: there, what no claim compares with runs once."""
        if problem != "reading":
            return True, "only reads"
        if budget != "paper" and self.paper_only:
            return True, "left to the paper budget"
        if budget != "paper" and not self.every_seed and (seed or corpus != "markov_passkey"):
            return True, "one seed of markov_passkey outside the paper budget"
        return False, None

    def set_objective(self, problem, budget, seed, length, vocabulary, batch_size, corpus, size, **arrays):
        """Note the problem."""
        self.arrays = arrays
        self.params = {
            "position": self.position,
            "readings": self.readings if budget != "quick" or (corpus == "markov_passkey" and not seed) else (),
            "size": size,
            "seed": int(seed),
            "length": int(length),
            "vocabulary": int(vocabulary),
            "batch_size": int(batch_size),
        }

    def run(self, _):
        """Train and read."""
        self.result = measure(Path(__file__).with_name("baselines.py"), "fit", self.arrays, self.params)

    def get_result(self):
        """Return losses, answers, seconds and memory."""
        return self.result
