"""Multi-view networks of earlier work, trained alike: one MLP per view, Adam, the same epochs.

TMC (Han et al., 2021), ETMC (Han et al., 2022) and ECML (Xu et al., 2024) read the outputs of each view's network as
evidence of a Dirichlet distribution and differ in how they fuse it. Late fusion adds the logits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPOCHS = {"smoke": 20, "quick": 30, "paper": 500}
BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, LAYERS, DROPOUT = 100, 1e-3, 1e-5, 3, 0.1
ANNEALING_EPOCHS = 50
ORDERS = 6


def view_mlp(n_features: int, n_classes: int) -> nn.Module:
    """Hidden layers as wide as the input, then a linear layer."""
    hidden = [m for _ in range(LAYERS - 1) for m in (nn.Linear(n_features, n_features), nn.ReLU(), nn.Dropout(DROPOUT))]
    return nn.Sequential(*hidden, nn.Linear(n_features, n_classes))


# ---------------------------------------------------------------------- Dirichlet evidence


def dempster(evidence: Tensor) -> Tensor:
    """Fuse the evidence of all views, (V, B, K), by the reduced Dempster rule (TMC, Eqs. 4-6)."""
    n_classes = evidence.shape[-1]
    fused = evidence[0]
    for e in evidence[1:]:
        s1, s2 = fused.sum(-1, keepdim=True) + n_classes, e.sum(-1, keepdim=True) + n_classes
        b1, b2, u1, u2 = fused / s1, e / s2, n_classes / s1, n_classes / s2
        conflict = b1.sum(-1, keepdim=True) * b2.sum(-1, keepdim=True) - (b1 * b2).sum(-1, keepdim=True)
        belief = (b1 * b2 + b1 * u2 + b2 * u1) / (1 - conflict)
        u = u1 * u2 / (1 - conflict)
        fused = belief * n_classes / u
    return fused


def conflictive_mean(evidence: Tensor) -> Tensor:
    """Fuse by conflictive opinion aggregation, one view after the other: e <- (e + e_v) / 2 (ECML, Eq. 10)."""
    fused = evidence[0]
    for e in evidence[1:]:
        fused = (fused + e) / 2
    return fused


def evidential_loss(evidence: Tensor, y: Tensor, epoch: int) -> Tensor:
    """Expected cross-entropy under the Dirichlet plus the annealed KL of wrong evidence to the uniform one."""
    alpha = evidence + 1
    n_classes = alpha.shape[-1]
    target = F.one_hot(y, n_classes).to(alpha.dtype)
    strength = alpha.sum(-1, keepdim=True)
    cross_entropy = (target * (torch.digamma(strength) - torch.digamma(alpha))).sum(-1)
    a = target + (1 - target) * alpha
    s = a.sum(-1, keepdim=True)
    kl = (
        torch.lgamma(s).squeeze(-1)
        - torch.lgamma(a).sum(-1)
        - torch.lgamma(torch.tensor(float(n_classes)))
        + ((a - 1) * (torch.digamma(a) - torch.digamma(s))).sum(-1)
    )
    return (cross_entropy + min(1.0, epoch / ANNEALING_EPOCHS) * kl).mean()


def dissonance(evidence: Tensor) -> Tensor:
    """Mean conflict between the opinions of all pairs of views (ECML, Eqs. 7 and 15)."""
    n_views, _, n_classes = evidence.shape
    alpha = evidence + 1
    strength = alpha.sum(-1, keepdim=True)
    p, certainty = alpha / strength, 1 - (n_classes / strength).squeeze(-1)
    total = evidence.new_zeros(())
    for v in range(n_views):
        distance = (p - p[v]).abs().sum(-1) / 2
        total = total + (distance * certainty * certainty[v]).sum(0).mean()
    return total / (n_views - 1)


def evidential(fuse: Callable[[Tensor], Tensor], with_dissonance: bool) -> tuple[Callable, Callable]:
    """Loss and decision of an evidential method.

    The losses of the decision and of the views are summed; with dissonance they are averaged and the dissonance added
    with weight 1, as in the official code of ECML (RCML).
    """

    def loss(logits: Tensor, y: Tensor, epoch: int) -> Tensor:
        evidence = F.softplus(logits)
        total = evidential_loss(fuse(evidence), y, epoch) + sum(evidential_loss(e, y, epoch) for e in evidence)
        return total / (len(evidence) + 1) + dissonance(evidence) if with_dissonance else total

    def decide(logits: Tensor) -> tuple[Tensor, Tensor]:
        alpha = fuse(F.softplus(logits)) + 1
        return alpha.argmax(-1), alpha.shape[-1] / alpha.sum(-1)

    return loss, decide


def late_fusion() -> tuple[Callable, Callable]:
    """Loss and decision of summed logits; the uncertainty is the entropy in units of log K."""

    def loss(logits: Tensor, y: Tensor, epoch: int) -> Tensor:
        return F.cross_entropy(logits.sum(0), y)

    def decide(logits: Tensor) -> tuple[Tensor, Tensor]:
        log_p = logits.sum(0).log_softmax(-1)
        return log_p.argmax(-1), -(log_p.exp() * log_p).sum(-1) / np.log(log_p.shape[-1])

    return loss, decide


METHODS = {
    "tmc": lambda: evidential(dempster, with_dissonance=False),
    "etmc": lambda: evidential(dempster, with_dissonance=False),
    "ecml": lambda: evidential(conflictive_mean, with_dissonance=True),
    "late_fusion": late_fusion,
}


# ---------------------------------------------------------------------- training


def warm_up() -> None:
    """Load what the clock should not see."""
    fit_predict(
        {"y_train": np.arange(8) % 2} | {f"{part}_{v}": np.ones((8, 3), np.float32) for part in PARTS for v in (0, 1)},
        {"method": "tmc", "budget": "smoke", "seed": 0, "n_classes": 2},
    )


PARTS = ("train", "normal", "conflict")


def fit_predict(arrays: dict[str, np.ndarray], params: dict) -> dict[str, np.ndarray]:
    """Train one method and decide both test sets."""
    torch.set_num_threads(1)
    torch.manual_seed(params["seed"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    n_views = sum(name.startswith("train_") for name in arrays)
    views = {part: [torch.from_numpy(arrays[f"{part}_{v}"]).to(device) for v in range(n_views)] for part in PARTS}
    if params["method"] == "etmc":  # a pseudo-view of all features
        for part in PARTS:
            views[part].append(torch.cat(views[part], dim=1))
    y = torch.from_numpy(arrays["y_train"]).long().to(device)
    loss, decide = METHODS[params["method"]]()
    networks = nn.ModuleList(view_mlp(x.shape[1], params["n_classes"]) for x in views["train"]).to(device)
    optimizer = torch.optim.Adam(networks.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    for epoch in range(1, EPOCHS[params["budget"]] + 1):
        for batch in torch.randperm(len(y), device=device).split(BATCH_SIZE):
            logits = torch.stack([net(x[batch]) for net, x in zip(networks, views["train"], strict=True)])
            optimizer.zero_grad()
            loss(logits, y[batch], epoch).backward()
            optimizer.step()
    networks.eval()
    out = {}
    with torch.no_grad():
        for part in ("normal", "conflict"):
            logits = torch.stack([net(x) for net, x in zip(networks, views[part], strict=True)])
            label, uncertainty = decide(logits)
            out |= {f"label_{part}": label.cpu().numpy(), f"uncertainty_{part}": uncertainty.cpu().numpy()}
        rng = np.random.default_rng(params["seed"])
        orders = [torch.from_numpy(rng.permutation(len(logits))) for _ in range(ORDERS)]
        out["label_orders"] = np.stack([decide(logits[order.to(device)])[0].cpu().numpy() for order in orders])
    return out
