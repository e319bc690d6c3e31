"""FUML on the multi-view track (needs the extra ``bench``).

Beside accuracy and uncertainty the default variant reports how fusion treats synthetic memberships, and how long a
training step takes against a literal implementation of the same equations that compares views pair by pair.
"""

import statistics
import time
from typing import Any

from icml25.shared.isolated import BaseSolver, measure

EPOCHS = {"smoke": 20, "quick": 30, "paper": 500}
ORDERS = 6


def warm_up() -> None:
    """Load what the clock should not see."""
    import numpy as np

    views = {f"{part}_{v}": np.eye(8, 3, dtype=np.float32) for part in ("train", "normal", "conflict") for v in (0, 1)}
    params = {"fusion": "drf", "necessity": True, "budget": "smoke", "seed": 0}
    fit_predict({"y_train": np.arange(8) % 2, **views}, params)


def fit_predict(arrays: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Train on the training views and decide both test sets, also with the views in other orders."""
    import numpy as np
    import torch

    from icml25.fuml import FUML, FUMLClassifier

    class PossibilityNetwork(FUML):
        """The ablation without necessity: memberships stand for credibilities."""

        def credibility(self, m: Any, labels: Any) -> Any:
            return m

    class PossibilityClassifier(FUMLClassifier):
        _network = PossibilityNetwork

    torch.set_num_threads(1)
    n_views = sum(name.startswith("train_") for name in arrays)
    views = {part: [arrays[f"{part}_{v}"] for v in range(n_views)] for part in ("train", "normal", "conflict")}
    classifier = FUMLClassifier if params["necessity"] else PossibilityClassifier
    clf = classifier(
        fusion=params["fusion"], epochs=EPOCHS[params["budget"]], scale=None, random_state=params["seed"]
    ).fit(views["train"], arrays["y_train"])

    out: dict[str, Any] = {}
    for part in ("normal", "conflict"):
        report = clf.explain(views[part])
        out |= {f"label_{part}": report.label, f"uncertainty_{part}": report.uncertainty}
    rng = np.random.default_rng(params["seed"])
    with torch.no_grad():
        logits = [net(torch.from_numpy(x)) for net, x in zip(clf.module_.backbones, views["conflict"], strict=True)]
        orders = [[logits[v] for v in rng.permutation(n_views)] for _ in range(ORDERS)]
        out["label_orders"] = np.stack([clf.module_.from_logits(o).credibility.argmax(-1).numpy() for o in orders])
    return out


def _is_full_method(params: dict[str, Any]) -> bool:
    return params["fusion"] == "drf" and params["necessity"]


def fusion_of_synthetic_views(seed: int, draws: int = 5000, classes: int = 10) -> dict[str, float]:
    """How DRF treats two confident views and a third that is misaligned, or pure noise: shares of draws.

    Confident views have 0.8 to 1 on their class and less than 0.2 elsewhere; the misaligned one on another class.
    """
    import torch

    from icml25.fuml import conflict, credibility, drf, fusion_weights, uncertainty

    generator = torch.Generator().manual_seed(seed)

    def confident(label: torch.Tensor) -> torch.Tensor:
        m = 0.2 * torch.rand(draws, classes, generator=generator)
        return m.scatter(-1, label[:, None], 0.8 + 0.2 * torch.rand(draws, 1, generator=generator))

    label = torch.randint(classes, (draws,), generator=generator)
    other = (label + torch.randint(1, classes, (draws,), generator=generator)) % classes
    noise = 0.8 * torch.rand(draws, classes, generator=generator)
    first, second = confident(label), confident(label)
    shares = {}
    for name, third in (("misaligned", confident(other)), ("noise", noise)):
        m = torch.stack([first, second, third])
        c = credibility(m)
        u = uncertainty(c)
        fused = drf(m, c)
        least = fusion_weights(u, conflict(m)).argmin(0) == 2
        shares[f"{name}_least_weight"] = float(least.double().mean())
        shares[f"{name}_label_kept"] = float((fused.argmax(-1) == label).double().mean())
        shares[f"{name}_more_uncertain"] = float((uncertainty(credibility(fused)) > u).all(0).double().mean())
    return shares


def step_ratios(seed: int) -> dict[str, float]:
    """Seconds of a training step (forward and backward, batch 100, 10 classes, one thread) over those of the literal one.

    Both run in turns on the same inputs; the ratio is of medians. Views as in HW (V=6), and 24 views of width 32.
    """
    import torch
    from torch import nn

    from icml25.fuml import FUML, fuml_loss

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ratios = {}
    for dims in ([240, 76, 216, 47, 64, 6], [32] * 24):
        generator = torch.Generator().manual_seed(seed)
        views = [torch.rand(100, d, generator=generator) for d in dims]
        y = torch.randint(10, (100,), generator=generator)
        model = FUML(dims, 10, generator=generator).train()
        nets = nn.ModuleList(
            nn.Sequential(
                *(m for _ in range(2) for m in (nn.Linear(d, d), nn.ReLU(), nn.Dropout(0.1))), nn.Linear(d, 10)
            )
            for d in dims
        )

        def ours(model: FUML = model, views: list = views, y: torch.Tensor = y) -> None:
            model.zero_grad()
            fuml_loss(model(views, labels=y), y).backward()

        def literal(nets: nn.ModuleList = nets, views: list = views, y: torch.Tensor = y) -> None:
            nets.zero_grad()
            literal_loss([net(x) for net, x in zip(nets, views, strict=True)], y).backward()

        seconds: dict[Any, list[float]] = {ours: [], literal: []}
        for _ in range(12):
            for step, times in seconds.items():
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
        ours_s, literal_s = (statistics.median(times[2:]) for times in seconds.values())
        ratios |= {f"step_ratio_v{len(dims)}": ours_s / literal_s, f"step_ms_v{len(dims)}": 1000 * ours_s}
    torch.set_num_threads(threads)
    return ratios


def literal_loss(logits: list, y: Any) -> Any:
    """Eqs. 3-9 as they stand, one view and one pair of views at a time."""
    import math

    import torch
    import torch.nn.functional as F

    def credibility(m: torch.Tensor) -> torch.Tensor:
        m_y = (m * target).amax(1, keepdim=True)
        best_wrong = (m * (1 - target)).amax(1, keepdim=True)
        return (m + (1 - m_y) * (1 - target) + (1 - best_wrong) * target) / 2

    def loss(r: torch.Tensor) -> torch.Tensor:
        positive, negative = r.clamp_min(1e-7).log(), (1 - r).clamp_min(1e-7).log()
        return -(target * positive + (1 - target) * negative).sum(1).mean()

    target = F.one_hot(y, logits[0].shape[1])
    m = [torch.relu(a / a.norm(p=3, dim=1, keepdim=True)) for a in logits]
    r = [credibility(m_v) for m_v in m]
    reliability = []
    for v, r_v in enumerate(r):
        entropy = -(r_v * (r_v + 1e-11).log() + (1 - r_v) * (1 - r_v + 1e-11).log()).sum(1)
        u = entropy / (r_v.shape[1] * math.log(2))
        o = sum(1 - F.cosine_similarity(m[v], m[j], dim=1) for j in range(len(m)) if j != v) / (len(m) - 1)
        reliability.append((1 - u) * (1 - o))
    w = torch.stack(reliability).softmax(0)
    fused = torch.stack([w[v, :, None] * m[v] for v in range(len(m))]).sum(0)
    return loss(credibility(fused)) + sum(loss(r_v) for r_v in r)


class Solver(BaseSolver):
    """FUML and its ablations."""

    name = "FUML"
    sampling_strategy = "run_once"
    parameters = {  # noqa: RUF012
        "fusion, necessity": [
            ("drf", True),
            ("average", True),
            ("uncertainty", True),
            ("conflict", True),
            ("drf", False),
        ]
    }

    def set_objective(
        self,
        views_train: list,
        y_train: Any,
        views_normal: list,
        views_conflict: list,
        n_classes: int,
        budget: str,
        seed: int,
    ) -> None:
        """Note the problem."""
        parts = {"train": views_train, "normal": views_normal, "conflict": views_conflict}
        self.arrays = {f"{part}_{v}": view for part, views in parts.items() for v, view in enumerate(views)}
        self.arrays["y_train"] = y_train
        self.params = {"fusion": self.fusion, "necessity": self.necessity, "budget": budget, "seed": int(seed)}

    def skip(self, budget: str, **_: Any) -> tuple[bool, str]:
        """Leave the ablations to the paper budget."""
        return budget != "paper" and not _is_full_method(
            {"fusion": self.fusion, "necessity": self.necessity}
        ), "ablations run at the paper budget"

    def run(self, _: Any) -> None:
        """Train and predict in a process of its own; then answer the questions on fusion and speed."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)
        if _is_full_method(self.params) and self.params["budget"] != "smoke":
            self.result |= fusion_of_synthetic_views(self.params["seed"])
            self.result |= step_ratios(self.params["seed"])

    def get_result(self) -> dict[str, Any]:
        """Return labels, uncertainties, seconds, memory and further columns."""
        return self.result
