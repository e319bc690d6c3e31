"""Sort-and-cluster: heads and channels of x of a like magnitude are brought together (Sec. 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["GroupSpec", "reorder_", "segment", "sort_and_cluster"]


@dataclass(frozen=True)
class GroupSpec:
    """An order of a layer's heads and channels, and its groups.

    Attributes
    ----------
    head_order : (H,) int64, new head i is old head ``head_order[i]``.
    channel_order : (d_ssm,) int64, new position i holds old channel ``channel_order[i]`` = old head * P + position.
    head_sizes : (G, m) heads in each head cluster of each SSD group.
    channel_sizes : (G, m, n) positions in each channel group of each head cluster, the same for all of its heads.
    """

    head_order: Int[Tensor, "H"]
    channel_order: Int[Tensor, "d"]
    head_sizes: Int[Tensor, "G m"]
    channel_sizes: Int[Tensor, "G m n"]

    @property
    def channel_group(self) -> Int[Tensor, "d"]:
        """(d_ssm,) int64: which of the G*m*n groups each new position belongs to."""
        n = self.channel_sizes.shape[-1]
        sizes = self.channel_sizes.reshape(-1, n)
        rows = []
        for cluster, heads in enumerate(self.head_sizes.flatten().tolist()):
            positions = torch.repeat_interleave(torch.arange(n), sizes[cluster])
            rows.append((cluster * n + positions).repeat(heads))
        return torch.cat(rows)


def sort_and_cluster(
    stats: Float[Tensor, "..."],
    n_groups: int,
    head_groups: int = 4,
    channel_groups: int = 4,
    *,
    normalize: bool = True,
    channel_cluster: str = "dp",
    seed: int = 0,
) -> GroupSpec:
    """Cluster heads by their sorted channel profiles, and sorted positions by magnitude (Sec. 4.1).

    Parameters
    ----------
    stats : (H, P) statistic >= 0 of each channel of x, heads in the order of their SSD groups.
    n_groups : SSD groups G; heads stay inside theirs.
    head_groups : head clusters m per SSD group (4; clipped to H/G).
    channel_groups : channel groups n per head cluster (4; clipped to P).
    normalize : profiles of unit norm (True); a head of zeros stays zero.
    channel_cluster : "dp", segments of least squared error (exact), or "kmeans" started at evenly spaced positions.
    seed : of k-means.

    Returns
    -------
    GroupSpec

    Raises
    ------
    ValueError: stats is not (H, P) (Mamba1 has no heads), not finite or negative; H is not a multiple of n_groups;
        k-means found groups that are not contiguous.
    """
    if stats.ndim != 2 or stats.numel() == 0:
        raise ValueError(
            f"stats must be (heads, channels per head), got shape {tuple(stats.shape)}; Mamba1 has no heads to cluster"
        )
    a = stats.detach().double().cpu().numpy()
    if not np.isfinite(a).all() or (a < 0).any():
        raise ValueError("stats must be finite and >= 0")
    heads, width = a.shape
    if n_groups < 1 or heads % n_groups:
        raise ValueError(f"stats has {heads} heads, not a multiple of n_groups={n_groups}")
    if head_groups < 1 or channel_groups < 1:
        raise ValueError(f"head_groups and channel_groups must be at least 1, got {head_groups} and {channel_groups}")
    if channel_cluster not in ("dp", "kmeans"):
        raise ValueError(f"channel_cluster must be 'dp' or 'kmeans', got {channel_cluster!r}")
    m, n = min(head_groups, heads // n_groups), min(channel_groups, width)
    order = np.argsort(a, axis=1, kind="stable")
    profiles = np.take_along_axis(a, order, axis=1)
    if normalize:
        norms = np.linalg.norm(profiles, axis=1, keepdims=True)
        profiles = profiles / np.where(norms > 0, norms, 1)
    head_order, head_sizes, channel_sizes = [], [], []
    for members in np.arange(heads).reshape(n_groups, -1):
        labels = _ward(profiles[members], m)
        head_order.append(members[np.argsort(labels, kind="stable")])
        for cluster in range(m):
            features = profiles[members[labels == cluster]].T
            sizes = segment(features, n) if channel_cluster == "dp" else _kmeans(features, n, seed)
            head_sizes.append((labels == cluster).sum())
            channel_sizes.append(sizes)
    new_heads = np.concatenate(head_order)
    return GroupSpec(
        torch.from_numpy(new_heads),
        torch.from_numpy((new_heads[:, None] * width + order[new_heads]).ravel()),
        torch.tensor(head_sizes).reshape(n_groups, m),
        torch.tensor(np.array(channel_sizes)).reshape(n_groups, m, n),
    )


def _ward(profiles: np.ndarray, m: int) -> np.ndarray:
    from sklearn.cluster import AgglomerativeClustering

    if m == 1 or not profiles.any():  # no size tells dead heads apart
        return np.arange(len(profiles)) * m // len(profiles)
    return AgglomerativeClustering(n_clusters=m, linkage="ward").fit_predict(profiles)


def segment(features: np.ndarray, n: int) -> list[int]:
    """Sizes of the n contiguous segments of rows with the least squared distance to their means, by dynamic programming.

    Parameters
    ----------
    features : (P, d), P >= n.
    n : segments, none of them empty.
    """
    rows = len(features)
    first = np.vstack([np.zeros(features.shape[1]), np.cumsum(features, axis=0)])
    second = np.concatenate([[0.0], np.cumsum((features**2).sum(1))])
    start, stop = np.arange(rows + 1)[:, None], np.arange(rows + 1)[None]
    length = np.maximum(stop - start, 1)
    cost = second[None] - second[:, None] - ((first[None] - first[:, None]) ** 2).sum(-1) / length
    cost = np.where(stop > start, np.maximum(cost, 0), np.inf)
    best, cuts = cost[0], []
    for _ in range(n - 1):
        total = best[:, None] + cost
        cuts.append(total.argmin(0))
        best = total.min(0)
    ends = [rows]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    return np.diff([0, *reversed(ends)]).tolist()


def _kmeans(features: np.ndarray, n: int, seed: int) -> list[int]:
    from sklearn.cluster import KMeans

    if n == 1:
        return [len(features)]
    start = features[[k * len(features) // n for k in range(n)]]
    settings: dict[str, Any] = {"n_clusters": n, "init": start, "n_init": 1, "random_state": seed}
    labels = KMeans(**settings).fit_predict(features)
    sizes = np.bincount(labels, minlength=n)
    if (np.diff(labels) < 0).any() or (sizes == 0).any():
        raise ValueError("k-means found channel groups that are not contiguous; use channel_cluster='dp'")
    return sizes.tolist()


@torch.no_grad()
def reorder_(model: Any, specs: Sequence[GroupSpec]) -> Any:
    """Permute heads and channels of a float Mamba2 model in place; its logits stay.

    Rows of in_proj (z and x by channel, dt by head), channels of the convolution, A_log, D, dt_bias, the weight of the
    gated norm and the columns of out_proj move together; B and C stay. To be done before :func:`fuse_hadamard_`.

    Parameters
    ----------
    model : ``Mamba2ForCausalLM`` of transformers.
    specs : one per layer.

    Returns
    -------
    The same model.

    Raises
    ------
    TypeError: another class. ValueError: Mamba1, a rotated model, or orders that do not fit: wrong sizes, no
        permutation, heads that leave their SSD group or channels that leave their head.
    """
    from .graph import architecture_of
    from .hadamard import RotatedLinear

    if architecture_of(model) != "mamba2":
        raise ValueError("model is Mamba1, which has no heads to reorder")
    blocks = model.backbone.layers
    if len(specs) != len(blocks):
        raise ValueError(f"specs must hold one GroupSpec per layer, got {len(specs)} for {len(blocks)} layers")
    for i, (block, spec) in enumerate(zip(blocks, specs, strict=True)):
        mixer = block.mixer
        if isinstance(mixer.out_proj, RotatedLinear):
            raise ValueError("model is rotated already; reorder it before fuse_hadamard_")
        _check(spec, mixer, f"specs[{i}]")
    for block, spec in zip(blocks, specs, strict=True):
        mixer = block.mixer
        device = mixer.A_log.device
        channels, heads = spec.channel_order.to(device), spec.head_order.to(device)
        d, states = mixer.intermediate_size, 2 * mixer.n_groups * mixer.ssm_state_size
        rest = torch.arange(states, device=device)
        rows = torch.cat([channels, d + channels, 2 * d + rest, 2 * d + states + heads])
        conv = torch.cat([channels, d + rest])
        for parameter, index in (
            (mixer.in_proj.weight, rows),
            (mixer.in_proj.bias, rows),
            (mixer.conv1d.weight, conv),
            (mixer.conv1d.bias, conv),
            (mixer.A_log, heads),
            (mixer.D, heads),
            (mixer.dt_bias, heads),
            (mixer.norm.weight, channels),
        ):
            if parameter is not None:
                parameter.data = parameter.data[index]
        mixer.out_proj.weight.data = mixer.out_proj.weight.data[:, channels]
        mixer.group_spec = spec
    return model


def _check(spec: GroupSpec, mixer: Any, where: str) -> None:
    heads, width, groups = mixer.num_heads, mixer.head_dim, mixer.n_groups
    if spec.head_order.shape != (heads,) or spec.channel_order.shape != (heads * width,):
        raise ValueError(f"{where} is for another size; expected {heads} heads of {width} channels")
    if spec.head_order.sort().values.tolist() != list(range(heads)):
        raise ValueError(f"{where}.head_order is no permutation of {heads} heads")
    if spec.channel_order.sort().values.tolist() != list(range(heads * width)):
        raise ValueError(f"{where}.channel_order is no permutation of {heads * width} channels")
    per_group = heads // groups
    if ((spec.head_order // per_group) != torch.arange(heads) // per_group).any():
        raise ValueError(f"{where}.head_order moves a head out of its SSD group")
    if (spec.channel_order // width != spec.head_order.repeat_interleave(width)).any():
        raise ValueError(f"{where}.channel_order moves a channel out of its head")
    norm = getattr(mixer.norm, "group_size", None) or heads * width
    if norm < per_group * width:
        raise ValueError(f"{where}: the gated norm has groups of {norm} channels, fewer than an SSD group")
