"""The law of the negatives, draws from it, the schedule of gamma, and the margins."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from icml25.hps import (
    GammaSchedule,
    hard_negative_weights,
    reward_margin,
    rm_dpo,
    rm_r_dpo,
    sample_hard_negative,
)

S = torch.tensor([[3.0, 2.0, -1.0, 0.5]])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_worked_example():
    wanted = torch.tensor([[0, 0.895649, 0.009950, 0.094401]])
    torch.testing.assert_close(hard_negative_weights(S, 1.5), wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(hard_negative_weights(S, 0), torch.tensor([[0, 1 / 3, 1 / 3, 1 / 3]]))


@pytest.mark.parametrize(("gamma", "hardest"), [(60.0, 1), (-60.0, 2)])
def test_limits(gamma, hardest):
    assert hard_negative_weights(S, gamma)[0, hardest] == pytest.approx(1)


def test_ties_of_the_best_are_no_negatives_and_ties_below_share():
    weights = hard_negative_weights(torch.tensor([[5, 1, 5, 1, 0], [2, 2, 2, 2, 2]]), 1.0)
    e = math.e
    torch.testing.assert_close(weights[0], torch.tensor([0, e, 0, e, 1]) / (2 * e + 1))
    assert not weights[1].any()


def test_masked_places_don_t_count():
    scores = torch.tensor([[1.0, 9.0, 0.0, math.nan], [2.0, 1.0, math.inf, 0.0]])
    mask = torch.tensor([[True, False, True, False], [True, False, False, False]])
    torch.testing.assert_close(hard_negative_weights(scores, 2.0, mask), torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 0]]))
    assert sample_hard_negative(scores, 2.0, seeded(), mask).tolist() == [2, -1]


@given(st.integers(0, 2**32 - 1), st.floats(-5, 5), st.floats(-100, 100))
def test_an_offset_and_the_order_change_nothing(seed, gamma, offset):
    scores = torch.randn(3, 5, generator=seeded(seed), dtype=torch.float64)
    order = torch.randperm(5, generator=seeded(seed))
    weights = hard_negative_weights(scores, gamma)
    torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(hard_negative_weights(scores + offset, gamma), weights)
    torch.testing.assert_close(hard_negative_weights(scores[:, order], gamma), weights[:, order])


def test_standardised_scores():
    scores = torch.tensor([[30.0, 20.0, -10.0, 5.0], [4.0, 4.0, 4.0, 4.0]])
    scaled = (scores[0] - scores[0].mean()) / scores[0].std(correction=0)
    wanted = torch.cat([torch.zeros(1), (2 * scaled[1:]).softmax(0)])
    found = hard_negative_weights(scores, 2.0, normalize="std")
    torch.testing.assert_close(found[0], wanted)
    assert not found[1].any()
    padded = torch.nn.functional.pad(scores, (0, 2), value=1e6)
    mask = torch.tensor([[True] * 4 + [False] * 2] * 2)
    torch.testing.assert_close(hard_negative_weights(padded, 2.0, mask, "std")[:, :4], found)


def test_a_gamma_for_each_prompt():
    scores = S.repeat(3, 1)
    gammas = torch.tensor([-1.0, 0.0, 2.0])
    each = torch.cat([hard_negative_weights(S, gamma.item()) for gamma in gammas])
    torch.testing.assert_close(hard_negative_weights(scores, gammas), each)


@pytest.mark.parametrize("gamma", [-1.0, 0.0, 0.7])
def test_draws_follow_the_weights(gamma):
    draws = sample_hard_negative(S.expand(100_000, 4), gamma, seeded(1))
    counts = torch.bincount(draws, minlength=4)
    assert counts[0] == 0
    assert (
        chisquare(counts[1:].numpy(), 100_000 * hard_negative_weights(S.double(), gamma)[0, 1:].numpy()).pvalue > 1e-3
    )


def test_draws_are_repeatable():
    scores = torch.randn(50, 8, generator=seeded())
    first = sample_hard_negative(scores, 1.0, seeded(3))
    assert first.dtype == torch.int64 and first.shape == (50,)
    assert torch.equal(first, sample_hard_negative(scores, 1.0, seeded(3)))
    assert not torch.equal(first, sample_hard_negative(scores, 1.0, seeded(4)))


@pytest.mark.parametrize("gamma", [-5.0, 0.0, 5.0])
def test_large_scores(gamma):
    scores = torch.tensor([[1e4, -1e4, 9999.0, 0.0], [710.0, 709.0, -746.0, -747.0]])
    weights = hard_negative_weights(scores, gamma)
    assert weights.isfinite().all()
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    assert set(sample_hard_negative(scores, gamma, seeded()).tolist()) <= {1, 2, 3}


@pytest.mark.parametrize(
    ("scores", "gamma", "match"),
    [
        (torch.tensor([[1.0, 2.0], [0.0, math.nan]]), 1.0, "scores of row 1, response 1: not a finite number"),
        (S, math.inf, "gamma is inf"),
        (S, math.nan, "gamma is nan"),
    ],
)
def test_bad_input(scores, gamma, match):
    for function in (hard_negative_weights, sample_hard_negative):
        with pytest.raises(ValueError, match=match):
            function(scores, gamma)


def test_linear_and_constant_schedules():
    linear = GammaSchedule()
    assert [linear.at(t) for t in (0, 0.25, 0.5, 1)] == [-5, -2.5, 0, 5]
    assert [GammaSchedule("constant", 2.0).at(t) for t in (0, 1)] == [2, 2]


def test_stages_never_reach_the_end():
    stages = GammaSchedule("stages")
    seen = [stages.at(step / 100) for step in range(100)]
    assert seen == pytest.approx([value for value in (-5, -3, -1, 1, 3) for _ in range(20)])
    assert stages.at(1) == 3


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: GammaSchedule("cosine"), r"kind is 'cosine'; expected one of \('constant', 'linear', 'stages'\)"),
        (lambda: GammaSchedule(start=math.nan), "start and end are nan and 5.0"),
        (lambda: GammaSchedule(end=math.inf), "expected finite numbers"),
        (lambda: GammaSchedule().at(1.01), r"progress is 1\.01"),
        (lambda: GammaSchedule().at(math.nan), "progress is nan"),
    ],
)
def test_bad_schedules(call, match):
    with pytest.raises(ValueError, match=match):
        call()


REWARDS = torch.tensor([[1.2, 0.7, -0.3, 0.1], [0.0, 5.0, 4.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
SCORES = torch.tensor([[3.0, 2.0, -1.0, 0.5], [1.0, 2.0, 0.0, 7.0], [1.0, 1.0, 1.0, 1.0]])
MASK = torch.tensor([[True] * 4, [True] * 3 + [False], [True] * 4])


@pytest.mark.parametrize(
    ("kind", "wanted"), [("hard", (0.5 + 1) / 2), ("mean", (1.2 - 0.5 / 3 + 3) / 2), ("worst", (1.5 + 1) / 2)]
)
def test_reward_margins(kind, wanted):
    assert reward_margin(REWARDS, SCORES, kind, MASK).item() == pytest.approx(wanted)
    spread = REWARDS[MASK].std(correction=0).item()
    assert reward_margin(REWARDS, SCORES, kind, MASK, normalize=True).item() == pytest.approx(wanted / spread)


def test_bad_margins():
    with pytest.raises(ValueError, match=r"kind is 'best'; expected one of \('hard', 'mean', 'worst'\)"):
        reward_margin(REWARDS, SCORES, "best")
    with pytest.raises(ValueError, match="no prompt is left"):
        reward_margin(REWARDS[2:], SCORES[2:])


def test_margins_of_the_tables():
    chosen, rejected = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 1.0])
    assert rm_dpo(chosen, rejected).tolist() == [1.5, -2.0]
    lengths = torch.tensor([100, 10]), torch.tensor([50, 20])
    torch.testing.assert_close(rm_r_dpo(chosen, rejected, *lengths), torch.tensor([1.0, -1.9]))
    torch.testing.assert_close(rm_r_dpo(chosen, rejected, *lengths, alpha=0), torch.tensor([1.5, -2.0]))


def test_other_shapes_and_types_are_refused():
    bare = hard_negative_weights
    while hasattr(bare, "__wrapped__"):
        bare = bare.__wrapped__
    with pytest.raises(ValueError, match=r"scores \(1, 4\) and mask \(1, 1\)"):
        bare(S, 1.0, torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"scores \(\) and mask \(\)"):
        bare(torch.tensor(1.0), 1.0)
    with pytest.raises(TypeError, match=r"scores have dtype torch\.bool"):
        bare(S > 1, 1.0)
