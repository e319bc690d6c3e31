"""The watermark's own detector: what it takes for watermarked is called genuine."""

from icml25.shared.isolated import BaseSolver, measure
from icml25.shared.protocols.watermark_forgery import DETECTED, watermark_z


def verdicts(arrays, params):
    """1 where the mean colour's z-test finds the watermark at 0.001, else 0."""
    out = {}
    for total in arrays["lengths"].tolist():
        colors = arrays["suspect_colors"][arrays[f"tests_{total}"], :total]
        z = watermark_z(colors.reshape(len(colors), -1), params["null_mean"], params["null_variance"])
        out[f"p_values_{total}"] = (z >= DETECTED).astype(float)
    return out


class Solver(BaseSolver):
    """What the watermark's z-test finds is called genuine, the rest forged."""

    name = "Watermark detector"
    sampling_strategy = "run_once"
    problems = ("forgery",)

    def skip(self, problem, question="", unavailable=None, **_):
        """Run where forged texts are looked for."""
        if problem != "forgery" or question != "forgery":
            return True, "answers whether text is watermarked"
        return unavailable is not None, unavailable

    def set_objective(self, null_mean, null_variance, **problem):
        """Note colours and tests."""
        self.arrays = {k: v for k, v in problem.items() if k in ("lengths", "suspect_colors") or k.startswith("tests_")}
        self.params = {"null_mean": null_mean, "null_variance": null_variance}

    def run(self, _):
        """Judge in a process of its own."""
        self.result = measure(__file__, "verdicts", self.arrays, self.params)

    def get_result(self):
        """Return p-values, seconds and memory."""
        return self.result
