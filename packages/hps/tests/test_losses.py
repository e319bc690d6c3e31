"""The losses against the spec's worked example, brute force, closed forms, and each other."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, logsigmoid, softplus

from icml25.hps import bt_loss, hard_negative_weights, hps_full_loss, hps_loss, pl_loss

R = torch.tensor([[1.2, 0.7, -0.3, 0.1]], dtype=torch.float64)
S = torch.tensor([[3.0, 2.0, -1.0, 0.5]], dtype=torch.float64)
WORST = 1.03659219


def expected_mc(rewards, scores, gamma):
    """E[L_MC] over q, by enumeration."""
    n = rewards.shape[-1]
    q = hard_negative_weights(scores, gamma)
    best = scores.argmax(-1, keepdim=True)
    chosen = rewards.gather(-1, best).expand_as(rewards)
    return (q * hps_loss(chosen, rewards, n - 1, reduction="none")).sum(-1)


def surrogate(rewards, scores, gamma):
    """Of Theorem 1: the mean of the rewards in the place of log E_q[e^r]."""
    q = hard_negative_weights(scores, gamma)
    best = scores.argmax(-1, keepdim=True)
    return softplus(math.log(rewards.shape[-1] - 1) + (q * rewards).sum(-1) - rewards.gather(-1, best)[..., 0])


def worst_case(rewards, scores):
    best = scores.argmax(-1, keepdim=True)
    others = rewards.scatter(-1, best, -math.inf).amax(-1)
    return softplus(math.log(rewards.shape[-1] - 1) + others - rewards.gather(-1, best)[..., 0])


def literal(rewards, scores, gamma, top=1, log_n=True, weights=(1, 1, 1, 1, 1, 1)):
    """Eq. 8 and appendix E for one row of numbers, in loops and without a shift."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    total = 0.0
    for weight, best in zip(weights, order[:top], strict=False):
        below = [i for i in order if scores[i] < scores[best]]
        if below:
            z = sum(math.exp(gamma * scores[i]) for i in below)
            mean = sum(math.exp(gamma * scores[i]) / z * math.exp(rewards[i]) for i in below)
            e = math.exp(rewards[best])
            total -= weight * math.log(e / (e + (len(below) if log_n else 1) * mean))
    return total


cases = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def draw(rng, rows=None, ties=False):
    shape = (rows or 1, rng.integers(2, 7))
    rewards = rng.normal(size=shape) * 2
    scores = rng.integers(-2, 3, shape).astype(float) if ties else rng.permuted(rng.normal(size=shape), axis=1)
    return torch.from_numpy(rewards), torch.from_numpy(scores)


@pytest.mark.parametrize(
    ("gamma", "least", "mc", "full", "without"),
    [(0, 0.72631923, 0.74716811, 0.77127971, 0.32751123), (1.5, 0.99412959, 0.99889023, 1.00453848, 0.45544963)],
)
def test_worked_example(gamma, least, mc, full, without):
    assert surrogate(R, S, gamma).item() == pytest.approx(least, abs=1e-8)
    assert expected_mc(R, S, gamma).item() == pytest.approx(mc, abs=1e-8)
    assert hps_full_loss(R, S, gamma).item() == pytest.approx(full, abs=1e-8)
    assert hps_full_loss(R, S, gamma, log_num_negatives=False).item() == pytest.approx(without, abs=1e-8)
    assert worst_case(R, S).item() == pytest.approx(WORST, abs=1e-8)
    assert least < mc < full < WORST


def test_worked_example_limits():
    assert hps_full_loss(R, S, 50).item() == pytest.approx(WORST, abs=1e-8)
    assert hps_full_loss(R, S, -50).item() == pytest.approx(softplus(math.log(3) + R[0, 2] - R[0, 0]).item(), abs=1e-8)


def test_worked_example_several_preferred():
    both = hps_full_loss(R, S, 1.5, num_preferred=2, preferred_weights=(1, 1)).item()
    assert both == pytest.approx(1.72875773, abs=1e-8)
    assert both - hps_full_loss(R, S, 1.5).item() == pytest.approx(0.72421925, abs=1e-8)
    half = hps_full_loss(R, S, 1.5, num_preferred=2, preferred_weights=(1, 0.5)).item()
    assert half == pytest.approx(1.00453848 + 0.5 * 0.72421925, abs=1e-8)
    everything = hps_full_loss(R, S, 0, num_preferred=3).item()
    assert everything == pytest.approx(1.93489527, abs=1e-8)
    assert everything == pytest.approx(pl_loss(R, S).item(), abs=1e-10)


@given(cases, st.floats(-3, 3), st.booleans())
def test_full_loss_is_the_literal_one(rng, gamma, log_n):
    rewards, scores = draw(rng, rows=4, ties=True)
    top = int(rng.integers(1, rewards.shape[1]))
    weights = [1, *rng.uniform(0, 2, top - 1)]
    keep = (scores < scores.amax(1, keepdim=True)).any(1)
    if not keep.any():
        return
    found = hps_full_loss(
        rewards,
        scores,
        gamma,
        log_num_negatives=log_n,
        num_preferred=top,
        preferred_weights=weights,
        reduction="none",
    )
    for row in range(4):
        wanted = literal(rewards[row].tolist(), scores[row].tolist(), gamma, top, log_n, weights) if keep[row] else 0.0
        assert found[row].item() == pytest.approx(wanted, abs=1e-9)


@given(cases, st.floats(-4, 4))
def test_chain_of_bounds(rng, gamma):
    rewards, scores = draw(rng)
    chain = [
        surrogate(rewards, scores, gamma),
        expected_mc(rewards, scores, gamma),
        hps_full_loss(rewards, scores, gamma),
        worst_case(rewards, scores),
    ]
    assert all(low.item() <= high.item() + 1e-10 for low, high in itertools.pairwise(chain))
    # Theorem 2's proof: worst - L_full <= e^{2 a0} (max r - E_q[r])
    q = hard_negative_weights(scores, gamma)
    others = rewards.scatter(1, scores.argmax(1, keepdim=True), -math.inf).amax(1)
    bound = math.exp(2 * rewards.abs().max()) * (others - (q * rewards).sum(1))
    assert (chain[3] - chain[2]).item() <= bound.item() + 1e-10


@given(cases, st.floats(-9, 9))
def test_two_responses_are_dpo(rng, gamma):
    rewards, scores = (
        torch.from_numpy(rng.normal(size=(5, 2))),
        torch.from_numpy(rng.permuted([[0.0, 1.0]] * 5, axis=1)),
    )
    chosen = rewards.gather(1, scores.argmax(1, keepdim=True))[:, 0]
    rejected = rewards.gather(1, scores.argmin(1, keepdim=True))[:, 0]
    dpo = -logsigmoid(chosen - rejected).mean()
    for log_n in (True, False):
        torch.testing.assert_close(hps_full_loss(rewards, scores, gamma, log_num_negatives=log_n), dpo)
    for other in (hps_loss(chosen, rejected, 1), bt_loss(rewards, scores), pl_loss(rewards, scores)):
        torch.testing.assert_close(other, dpo)


@given(cases)
def test_gamma_zero_is_a_softmax_over_all(rng):
    rewards, scores = draw(rng, rows=6)
    torch.testing.assert_close(hps_full_loss(rewards, scores, 0), cross_entropy(rewards, scores.argmax(1)))


@given(cases)
def test_plackett_luce_is_the_product_of_choices(rng):
    rewards, scores = draw(rng, rows=3)
    found = pl_loss(rewards, scores, reduction="none")
    for row in range(3):
        left, probability = list(range(rewards.shape[1])), 1.0
        for best in scores[row].argsort(descending=True).tolist():
            weights = {i: math.exp(rewards[row, i]) for i in left}
            probability *= weights[best] / sum(weights.values())
            left.remove(best)
        assert found[row].item() == pytest.approx(-math.log(probability), abs=1e-9)
    whole = hps_full_loss(rewards, scores, 0, num_preferred=rewards.shape[1] - 1, reduction="none")
    torch.testing.assert_close(whole, found, atol=1e-10, rtol=0)


@given(cases, st.floats(-50, 50), st.floats(-3, 3))
def test_invariances(rng, offset, gamma):
    rewards, scores = draw(rng, rows=4)
    order = torch.from_numpy(rng.permutation(rewards.shape[1]))
    for loss in (pl_loss, bt_loss, lambda r, s: hps_full_loss(r, s, gamma)):
        value = loss(rewards, scores)
        torch.testing.assert_close(loss(rewards + offset, scores), value)
        torch.testing.assert_close(loss(rewards[:, order], scores[:, order]), value)
    torch.testing.assert_close(hps_full_loss(rewards, scores + offset, gamma), hps_full_loss(rewards, scores, gamma))


@pytest.mark.parametrize("log_n", [True, False])
@pytest.mark.parametrize("gamma", [-1.0, 0.0, 2.0])
def test_gradient_in_closed_form(gamma, log_n):
    rewards = R.clone().requires_grad_()
    hps_full_loss(rewards, S, gamma, log_num_negatives=log_n).backward()
    q = hard_negative_weights(S, gamma)
    weighted = (3 if log_n else 1) * q * R.exp()
    p = R[0, 0].exp() / (R[0, 0].exp() + weighted.sum())
    wanted = weighted / (R[0, 0].exp() + weighted.sum())
    wanted[0, 0] = p - 1
    torch.testing.assert_close(rewards.grad, wanted)
    assert rewards.grad.sum().item() == pytest.approx(0, abs=1e-12)


def test_gradients_against_finite_differences():
    rewards = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scores = torch.tensor([[1, 2, 3, 4, 5], [3, 3, 1, 0, 2], [1, 0, 9, 9, 9]]).double()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]).bool()
    for loss in (
        lambda r: hps_full_loss(r, scores, 0.7, mask, num_preferred=3, preferred_weights=[1, 0.5, 0.2]),
        lambda r: pl_loss(r, scores, mask),
        lambda r: bt_loss(r, scores, mask),
        lambda r: hps_loss(r[:, 0], r[:, 1], torch.tensor([4, 0, 2]), label_smoothing=0.1),
    ):
        assert torch.autograd.gradcheck(loss, rewards)


def test_gradient_norm_is_bounded_in_n():
    for n in (2, 8, 64):
        scores = -torch.arange(n).double()[None]
        rewards = (100 * torch.arange(n).double()[None]).requires_grad_()  # as wrong as can be
        for loss, bound in ((hps_full_loss(rewards, scores, 1.0), 2), (pl_loss(rewards, scores), 2 * (n - 1))):
            [gradient] = torch.autograd.grad(loss, rewards)
            assert gradient.abs().sum().item() == pytest.approx(bound)


def test_harder_negatives_get_more_of_the_gradient():
    shares = []
    for gamma in (-2.0, -0.5, 0.0, 0.5, 2.0):
        rewards = R.clone().requires_grad_()
        hps_full_loss(rewards, S, gamma).backward()
        shares.append((rewards.grad[0, 1] / -rewards.grad[0, 0]).item())
    assert all(b > a for a, b in itertools.pairwise(shares))


def test_label_smoothing_is_conservative_dpo():
    chosen, rejected, n = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0]), torch.tensor([3, 7])
    margin = chosen - rejected - n.log()
    wanted = -0.9 * logsigmoid(margin) - 0.1 * logsigmoid(-margin)
    torch.testing.assert_close(hps_loss(chosen, rejected, n, label_smoothing=0.1, reduction="none"), wanted)


MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_a_row_without_negatives_adds_nothing():
    # the masked places hold what padding may hold
    rewards = torch.tensor([[1.0, 0.2, -0.5], [0.3, math.nan, math.inf]], requires_grad=True)
    scores = torch.tensor([[2.0, 1.0, 0.0], [1.0, math.nan, math.inf]])
    first = rewards[:1].detach(), scores[:1]
    for loss in (lambda r, s, m: hps_full_loss(r, s, 1.5, m, num_preferred=2), pl_loss, bt_loss):
        value = loss(rewards, scores, MASK)
        [gradient] = torch.autograd.grad(value, rewards)
        assert value.item() == pytest.approx(loss(*first, None).item())
        assert gradient.isfinite().all() and not gradient[1].any() and gradient[0].any()
        with pytest.raises(ValueError, match="no row is left"):
            loss(rewards[1:], scores[1:], MASK[1:])
    chosen = torch.tensor([1.0, 5.0], requires_grad=True)
    value = hps_loss(chosen, torch.tensor([0.0, math.nan]), torch.tensor([2, 0]))
    [gradient] = torch.autograd.grad(value, chosen)
    assert value.item() == pytest.approx(softplus(torch.tensor(math.log(2) - 1)).item())
    assert gradient[0] < 0 and gradient[1] == 0
    with pytest.raises(ValueError, match="no row is left"):
        hps_loss(chosen, chosen, 0)


def test_ragged_rows_are_rows_of_their_own():
    rewards, scores = (
        torch.randn(2, 4, generator=torch.Generator().manual_seed(1)),
        torch.tensor([[1, 2, 3, 4], [5, 4, 9, 9]]),
    )
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    for loss in (
        lambda r, s, m: hps_full_loss(r, s, 0.5, m, reduction="none"),
        lambda r, s, m: pl_loss(r, s, m, "none"),
    ):
        apart = torch.cat([loss(rewards[:1], scores[:1], None), loss(rewards[1:, :2], scores[1:, :2], None)])
        torch.testing.assert_close(loss(rewards, scores, mask), apart)


def test_reductions_and_batches():
    rewards, scores = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    for loss in (lambda **k: hps_full_loss(rewards, scores, 1.0, **k), lambda **k: pl_loss(rewards, scores, **k)):
        each = loss(reduction="none")
        assert each.shape == (2, 3)
        torch.testing.assert_close(loss(), each.mean())
        torch.testing.assert_close(loss(reduction="sum"), each.sum())
    assert hps_loss(torch.tensor(1.0), torch.tensor(0.0), 1).shape == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    rewards = R.to(dtype)
    for loss in (lambda r, s: hps_full_loss(r, s, 1.5), pl_loss, bt_loss):
        value = loss(rewards, S.to(dtype))
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, loss(rewards.float(), S.float()))
    assert hps_loss(rewards[:, 0], rewards[:, 1], 3).dtype == torch.float32


def test_extremes_stay_finite():
    rewards = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    scores = torch.tensor([[1e4, -1e4, 0.0]])
    for gamma in (-100.0, 0.0, 100.0):
        value = hps_full_loss(rewards, scores, gamma)
        [gradient] = torch.autograd.grad(value, rewards)
        assert value.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: hps_full_loss(R, S, math.nan), "gamma is nan"),
        (lambda: hps_full_loss(R, S, math.inf), "gamma is inf"),
        (lambda: hps_full_loss(R, S.where(S != 2, math.nan), 1.0), "scores of row 0, response 1: not a finite"),
        (lambda: pl_loss(R, S.where(S != 2, math.inf)), "scores of row 0, response 1"),
        (
            lambda: hps_full_loss(R, S, 1.0, reduction="avg"),
            r"reduction is 'avg'; expected one of \('mean', 'sum', 'none'\)",
        ),
        (lambda: hps_full_loss(R, S, 1.0, normalize="max"), r"normalize is 'max'; expected one of \(None, 'std'\)"),
        (lambda: hps_full_loss(R, S, 1.0, num_preferred=4), r"num_preferred is 4; expected 1\.\.3"),
        (lambda: hps_full_loss(R, S, 1.0, num_preferred=0), "num_preferred is 0"),
        (lambda: hps_full_loss(R, S, 1.0, num_preferred=2, preferred_weights=[1.0]), "expected 2 finite"),
        (lambda: hps_full_loss(R, S, 1.0, preferred_weights=[math.nan]), "expected 1 finite"),
        (lambda: hps_full_loss(R, S, 1.0, preferred_weights=[-1.0]), "non-negative"),
        (lambda: hps_full_loss(R, torch.zeros_like(S), 1.0), "no row is left"),
        (lambda: hps_loss(R[0], R[0], -1), "num_negatives has -1"),
        (
            lambda: hps_loss(R[0], R[0], 1, label_smoothing=0.5),
            r"label_smoothing is 0\.5; expected a number in \[0, 0\.5\)",
        ),
        (lambda: hps_loss(R[0], R[0], 1, label_smoothing=-0.1), "label_smoothing is -0.1"),
        (lambda: hps_loss(R[0], R[0], 1, label_smoothing=math.nan), "label_smoothing is nan"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def bare(function):
    """Without the types, which are only checked in the tests."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def test_shapes_that_would_broadcast_are_refused():
    for loss in (bt_loss, pl_loss, lambda r, s: bare(hps_full_loss)(r, s, 1.0)):
        with pytest.raises(ValueError, match=r"rewards \(1, 4\) and scores \(1, 1\)"):
            bare(loss)(R, S[:, :1])
    with pytest.raises(ValueError, match=r"scores \(1, 4\) and mask \(1, 1\)"):
        bare(pl_loss)(R, S, torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"chosen_rewards \(4,\) and rejected_rewards \(1,\)"):
        bare(hps_loss)(R[0], R[0, :1], 1)


def test_bools_are_not_scores():
    for loss in (bt_loss, pl_loss, lambda r, s: bare(hps_full_loss)(r, s, 1.0)):
        with pytest.raises(TypeError, match=r"scores have dtype torch\.bool"):
            bare(loss)(R, S > 1)
    with pytest.raises(TypeError, match=r"mask has dtype torch\.int64"):
        bare(pl_loss)(R, S, torch.ones(1, 4, dtype=torch.int64))
