"""The network: one backbone per view, memberships, credibilities and their fusion (Fig. 2)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .fusion import FUSIONS, conflict, fuse, fusion_weights
from .membership import check_labels, check_norm_order, credibility, memberships, training_credibility, uncertainty

__all__ = ["FUML", "FUMLOutput", "ViewMLP"]


@dataclass(frozen=True)
class FUMLOutput:
    """What the network says about a batch of B samples with V views and K classes.

    With labels, credibilities are those of training (Eq. 5), otherwise those of test time (Eq. 2); uncertainties,
    weights and the fused membership follow from them.

    Attributes:
        membership: fused membership, (B, K).
        credibility: its credibility, (B, K); the decision is the arg max.
        uncertainty: uncertainty of the decision in [0, 1], (B,).
        view_membership: (V, B, K).
        view_credibility: (V, B, K).
        view_uncertainty: (V, B).
        conflict: conflict of each view with the others in [0, 1], (V, B).
        weights: fusion weights, (V, B), sum to 1 over the views.
        labels: the labels given, (B,), or None.
    """

    membership: Float[Tensor, "batch classes"]
    credibility: Float[Tensor, "batch classes"]
    uncertainty: Float[Tensor, " batch"]
    view_membership: Float[Tensor, "views batch classes"]
    view_credibility: Float[Tensor, "views batch classes"]
    view_uncertainty: Float[Tensor, "views batch"]
    conflict: Float[Tensor, "views batch"]
    weights: Float[Tensor, "views batch"]
    labels: Int[Tensor, " batch"] | None = None


class ViewMLP(nn.Module):
    """Backbone of one view: ``n_layers - 1`` hidden layers (Linear, ReLU, Dropout), then Linear.

    Args:
        n_features: width d of the view.
        n_classes: number of logits K.
        n_layers: number of linear layers L >= 1.
        dropout: probability in [0, 1) of dropping a hidden unit while training.
        hidden_width: width of the hidden layers >= 1; None: that of the view, as in the paper.
        head_bias: initial bias of the logits; None: torch's default, as in the paper. A class whose logit is negative
            for every sample gets no gradient (Eq. 3), so a positive bias keeps classes from being dead at the start.
        generator: source of the initial weights (torch's default initialisation); None for torch's global one.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        n_features: int,
        n_classes: int,
        n_layers: int = 3,
        dropout: float = 0.1,
        hidden_width: int | None = None,
        head_bias: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        width = n_features if hidden_width is None else hidden_width
        if min(n_features, n_layers, width) < 1 or n_classes < 2:
            raise ValueError(
                "a view needs n_features, n_layers and hidden_width >= 1 and n_classes >= 2, "
                f"got {n_features}, {n_layers}, {hidden_width} and {n_classes}."
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout!r}.")
        self.dropout = dropout
        widths = [n_features] + [width] * (n_layers - 1)
        self.hidden = nn.ModuleList(_linear(d, width, generator) for d in widths[:-1])
        self.head = _linear(widths[-1], n_classes, generator)
        if head_bias is not None:
            nn.init.constant_(self.head.bias, head_bias)

    def forward(
        self, x: Float[Tensor, "batch features"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits of a batch.

        Args:
            x: features, (B, d).
            generator: source of the dropout masks; None for torch's global one.

        Returns:
            Logits, (B, K).
        """
        for layer in self.hidden:
            x = torch.relu(layer(x))
            if self.training and self.dropout:
                keep = 1 - self.dropout
                x = x * torch.empty_like(x).bernoulli_(keep, generator=generator).div_(keep)
        return self.head(x)


class FUML(nn.Module):
    """Fuzzy multi-view network: a backbone per view whose logits become memberships that DRF fuses.

    Args:
        backbones: one module per view that maps its input to logits (B, K), or the widths of the views, each of which
            gets a :class:`ViewMLP`.
        n_classes: number of classes K >= 2.
        p: order of the norm in Eq. 3, p >= 1.
        fusion: "drf" (the paper), "average", "uncertainty" or "conflict", see :func:`~icml25.fuml.fusion_weights`.
        n_layers: layers of each :class:`ViewMLP`, where widths are given.
        dropout: dropout of each :class:`ViewMLP`, where widths are given.
        hidden_width: width of the hidden layers of each :class:`ViewMLP`, where widths are given.
        head_bias: initial bias of the logits of each :class:`ViewMLP`, where widths are given.
        generator: source of the initial weights, where widths are given; None for torch's global one.

    Raises:
        ValueError: no backbone, K < 2, p < 1, unknown fusion, dropout outside [0, 1).
        TypeError: backbones mixes modules and widths.
    """

    def __init__(
        self,
        backbones: Sequence[nn.Module] | Sequence[int],
        n_classes: int,
        p: int | float = 3,
        fusion: str = "drf",
        *,
        n_layers: int = 3,
        dropout: float = 0.1,
        hidden_width: int | None = None,
        head_bias: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if len(backbones) == 0:
            raise ValueError("backbones is empty: at least one view is needed.")
        if n_classes < 2:
            raise ValueError(f"n_classes must be >= 2, got {n_classes}.")
        check_norm_order(p)
        if fusion not in FUSIONS:
            raise ValueError(f"fusion must be one of {FUSIONS}, got {fusion!r}.")
        modules = [b for b in backbones if isinstance(b, nn.Module)]
        widths = [b for b in backbones if not isinstance(b, nn.Module)]
        if modules and widths:
            raise TypeError("backbones must be all modules or all widths, got a mixture.")
        modules += [ViewMLP(d, n_classes, n_layers, dropout, hidden_width, head_bias, generator) for d in widths]
        self.backbones = nn.ModuleList(modules)
        self.n_classes = n_classes
        self.p = p
        self.fusion = fusion

    def forward(self, views: Sequence[Tensor], labels: Int[Tensor, " batch"] | None = None) -> FUMLOutput:
        """Classify a batch.

        Args:
            views: one input per backbone, each with B samples.
            labels: labels in 0..K-1, (B,): given, the output holds the training credibility (Eq. 5) that
                :func:`~icml25.fuml.fuml_loss` needs, whether the module is in training mode or not.

        Returns:
            Memberships, credibilities, uncertainties and weights.

        Raises:
            TypeError: labels are not of an integer dtype.
            ValueError: wrong number of views, views of different lengths, logits that are not (B, K), labels that are
                not (B,), or a label outside 0..K-1.
        """
        if len(views) != len(self.backbones):
            raise ValueError(f"views must hold {len(self.backbones)} views, got {len(views)}.")
        return self.from_logits([net(x) for net, x in zip(self.backbones, views, strict=True)], labels)

    def from_logits(self, logits: Sequence[Tensor], labels: Int[Tensor, " batch"] | None = None) -> FUMLOutput:
        """Classify a batch from the logits of all views, see :meth:`forward`.

        Args:
            logits: one tensor (B, K) per view.
            labels: labels in 0..K-1, (B,), or None.

        Returns:
            Memberships, credibilities, uncertainties and weights.

        Raises:
            TypeError: labels are not of an integer dtype.
            ValueError: logits that are not (B, K) with the same B, labels that are not (B,), or a label outside 0..K-1.
        """
        shapes = [tuple(a.shape) for a in logits]
        if len(set(shapes)) != 1 or len(shapes[0]) != 2 or shapes[0][1] != self.n_classes:
            raise ValueError(f"each view must give logits (batch, {self.n_classes}), got shapes {shapes}.")
        if labels is not None:
            check_labels(labels, shapes[0], "labels")
        m_views = memberships(torch.stack(list(logits)), self.p)
        c_views = self.credibility(m_views, labels)
        u_views = uncertainty(c_views)
        o = conflict(m_views)
        w = fusion_weights(u_views, o, self.fusion)
        m = fuse(m_views, w)
        c = self.credibility(m, labels)
        return FUMLOutput(m, c, uncertainty(c), m_views, c_views, u_views, o, w, labels)

    def credibility(
        self, m: Float[Tensor, "*batch classes"], labels: Int[Tensor, " samples"] | None
    ) -> Float[Tensor, "*batch classes"]:
        """Credibility of memberships: Eq. 5 with labels, Eq. 2 without.

        Args:
            m: memberships, (B, K) or (V, B, K).
            labels: labels, (B,), or None.

        Returns:
            Credibilities, of the shape of m.
        """
        if labels is None:
            return credibility(m)
        return training_credibility(m, labels.expand(m.shape[:-1]))


def _linear(n_in: int, n_out: int, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer with torch's default initialisation, U(-1/sqrt(n_in), 1/sqrt(n_in)), drawn from the generator."""
    if generator is None:
        return nn.Linear(n_in, n_out)
    layer = cast(nn.Linear, nn.utils.skip_init(nn.Linear, n_in, n_out))
    bound = 1 / math.sqrt(n_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
