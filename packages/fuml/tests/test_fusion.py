"""Conflict and dual-reliable fusion against a literal double loop, and the paper's propositions."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.fuml import conflict, credibility, drf, fuse, fusion_weights, memberships, uncertainty

seeds = st.integers(0, 2**31 - 1)


def random_memberships(seed, views=3, batch=4, classes=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return memberships(torch.randn(views, batch, classes, dtype=dtype, generator=generator))


def pairwise_conflict(m):
    views = m.shape[0]
    rows = []
    for v in range(views):
        others = [1 - F.cosine_similarity(m[v], m[j], dim=-1) for j in range(views) if j != v]
        rows.append(sum(others) / (views - 1))
    return torch.stack(rows)


@pytest.mark.parametrize("views", [2, 3, 6])
def test_conflict_equals_the_loop_over_pairs(views):
    m = random_memberships(0, views)
    torch.testing.assert_close(conflict(m), pairwise_conflict(m))


def test_conflict_of_equal_opposite_and_dead_views():
    one, other, dead = torch.tensor([1.0, 0, 0]), torch.tensor([0, 0.7, 0]), torch.zeros(3)
    assert conflict(torch.stack([one, 0.5 * one])).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert conflict(torch.stack([one, other])).tolist() == [1, 1]
    assert conflict(torch.stack([one, one, dead])).tolist() == pytest.approx([0.5, 0.5, 1])


def test_a_single_view_has_no_conflict_and_all_the_weight():
    m = random_memberships(1, views=1)
    assert torch.equal(conflict(m), torch.zeros(1, 4, dtype=m.dtype))
    torch.testing.assert_close(drf(m, credibility(m)), m[0])


@given(seeds, st.integers(1, 5))
def test_conflict_and_weights_keep_their_bounds(seed, views):
    m = random_memberships(seed, views, dtype=torch.float32)
    u, o = uncertainty(credibility(m)), conflict(m)
    w = fusion_weights(u, o)
    assert ((o >= 0) & (o <= 1)).all()
    torch.testing.assert_close(w.sum(0), torch.ones(4))
    assert (w >= 1 / (1 + (views - 1) * math.e) - 1e-6).all()
    assert (w <= math.e / (math.e + views - 1) + 1e-6).all()


def test_weights_of_each_mode():
    u, o = torch.tensor([[0.2], [0.6]]), torch.tensor([[0.1], [0.5]])
    for mode, reliability in {
        "drf": [0.8 * 0.9, 0.4 * 0.5],
        "uncertainty": [0.8, 0.4],
        "conflict": [0.9, 0.5],
        "average": [0.0, 0.0],
    }.items():
        e = [math.exp(x) for x in reliability]
        assert fusion_weights(u, o, mode).flatten().tolist() == pytest.approx([x / sum(e) for x in e])


def test_drf_is_the_weighted_sum_of_memberships():
    m = random_memberships(2)
    c = credibility(m)
    w = torch.softmax((1 - uncertainty(c)) * (1 - pairwise_conflict(m)), dim=0)
    torch.testing.assert_close(drf(m, c), sum(w[v, :, None] * m[v] for v in range(3)))


@given(seeds)
def test_the_order_of_views_plays_no_role(seed):
    m = random_memberships(seed, views=4)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(conflict(m[order]), conflict(m)[order])
    torch.testing.assert_close(drf(m[order], credibility(m[order])), drf(m, credibility(m)))


def test_conflict_has_a_finite_gradient_at_a_dead_view():
    m = torch.tensor([[[0.0, 0, 0]], [[0.3, 0.9, 0]]], requires_grad=True)
    conflict(m).sum().backward()
    assert torch.isfinite(m.grad).all()
    assert m.grad.abs().max() < 10


def test_gradient_of_drf():
    a = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def fused(a):
        m = memberships(a)
        return drf(m, credibility(m))

    assert torch.autograd.gradcheck(fused, a)


def test_unknown_mode():
    with pytest.raises(ValueError, match="fusion mode must be one of"):
        fusion_weights(torch.zeros(2, 1), torch.zeros(2, 1), "mean")


def fused_uncertainty(views):
    m = torch.stack(views)
    c = credibility(m)
    return uncertainty(credibility(drf(m, c))), uncertainty(c)


@settings(max_examples=100)
@given(seeds, st.integers(2, 8))
def test_a_noisier_view_raises_the_uncertainty(seed, classes):
    """Proposition 3.4: both views rank the classes alike, and view 2 has the smaller gaps to the top."""
    generator = torch.Generator().manual_seed(seed)
    m1, _ = torch.rand(classes, dtype=torch.float64, generator=generator).sort(descending=True)
    gaps = (0.95 * torch.rand(classes, dtype=torch.float64, generator=generator) * (m1[0] - m1)).sort().values
    top = gaps[-1] + (1 - gaps[-1]) * torch.rand(1, dtype=torch.float64, generator=generator)
    m2 = top - gaps  # each gap is below that of view 1, as sorting keeps the bound
    u, u_views = fused_uncertainty([m1, m2])
    assert u > u_views[0]


@settings(max_examples=100)
@given(seeds, st.integers(2, 8))
def test_conflicting_views_raise_the_uncertainty(seed, classes):
    """Proposition 3.5: two views that are confident of different classes."""
    generator = torch.Generator().manual_seed(seed)
    views = 0.2 * torch.rand(2, classes, dtype=torch.float64, generator=generator)
    views[[0, 1], [0, 1]] = 0.8 + 0.2 * torch.rand(2, dtype=torch.float64, generator=generator)
    u, u_views = fused_uncertainty(list(views))
    assert u > u_views[0]
    assert u > u_views[1]


def test_a_misaligned_or_noisy_view_weighs_least():
    generator = torch.Generator().manual_seed(0)

    def confident(classes):
        m = 0.2 * torch.rand(5000, 10, generator=generator)
        return m.scatter(-1, classes[:, None], 0.8 + 0.2 * torch.rand(5000, 1, generator=generator))

    label = torch.randint(10, (5000,), generator=generator)
    wrong = (label + torch.randint(1, 10, (5000,), generator=generator)) % 10
    m = torch.stack([confident(label), confident(label), confident(wrong)])
    u_views = uncertainty(credibility(m))
    fused = drf(m, credibility(m))
    weights = fusion_weights(u_views, conflict(m))
    assert (weights.argmin(0) == 2).double().mean() >= 0.99
    assert torch.equal(fused.argmax(-1), label)
    assert (uncertainty(credibility(fused)) > u_views).all()

    noisy = torch.stack([m[0], m[1], 0.8 * torch.rand(5000, 10, generator=generator)])
    weights = fusion_weights(uncertainty(credibility(noisy)), conflict(noisy))
    assert (weights.argmin(0) == 2).all()


def test_fuse_takes_any_weights():
    m = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert fuse(m, torch.tensor([0.75, 0.25])).tolist() == [0.75, 0.25]
