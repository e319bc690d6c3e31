import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.joker import EpsilonInsensitive, Hinge, Huber, Logistic, Squared, SquaredHinge

LOSSES = [Squared(), Huber(0.7), EpsilonInsensitive(0.2), SquaredHinge(), Hinge(), Logistic()]
EACH_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
STEP = 5e-4
U_GRID = torch.arange(-40, 40, STEP, dtype=torch.float64)[:, None]


def column(value):
    return torch.tensor([[float(value)]], dtype=torch.float64)


def by_search(loss, a, y, C):
    """f(a) = max_u [-a u - C loss(y, u)], on a grid of u."""
    return (-a * U_GRID - C * loss.value(y.expand_as(U_GRID), U_GRID)).max().item()


def inside(loss, share, y, C):
    """A point of the box of alpha, ``share`` of the way through it (through [-2, 2] where it is unbounded)."""
    lo, hi = (bound.clamp(-2, 2) for bound in loss.box(y, C))
    return torch.lerp(lo, hi, column(share))


@EACH_LOSS
@settings(max_examples=20, deadline=None)
@given(C=st.floats(0.1, 5), target=st.floats(-2, 2), share=st.floats(0.02, 0.98))
def test_f_is_the_conjugate_of_the_loss(loss, C, target, share):
    y = column(target if loss.task == "regression" else 1.0 if target > 0 else -1.0)
    a = inside(loss, share, y, C)
    assert loss.conjugate(a, y, C).item() == pytest.approx(by_search(loss, a, y, C), abs=STEP * (float(a.abs()) + C))


def test_the_conjugate_of_the_tube_holds_on_both_sides():
    loss, y = EpsilonInsensitive(0.3), column(0.8)
    for a in (-1.5, -0.2, 0.0, 0.4, 2.0):
        assert loss.conjugate(column(a), y, 2.0).item() == pytest.approx(
            by_search(loss, column(a), y, 2.0), abs=STEP * (abs(a) + 2.0)
        )


@EACH_LOSS
@settings(max_examples=20, deadline=None)
@given(C=st.floats(0.1, 50), target=st.floats(-2, 2), share=st.floats(0.05, 0.95))
def test_derivatives_match_finite_differences(loss, C, target, share):
    y = column(target if loss.task == "regression" else 1.0 if target > 0 else -1.0)
    a = inside(loss, share, y, C).requires_grad_()
    (slope,) = torch.autograd.grad(loss.conjugate(a, y, C).sum(), a)
    a = a.detach()
    torch.testing.assert_close(loss.gradient(a, y, C), slope, rtol=1e-9, atol=1e-9)
    h = 1e-5 * C
    bend = (loss.gradient(a + h, y, C) - loss.gradient(a - h, y, C)) / (2 * h)
    torch.testing.assert_close(loss.curvature(a, y, C), bend, rtol=1e-4, atol=1e-6)


@EACH_LOSS
@settings(max_examples=20, deadline=None)
@given(C=st.floats(0.1, 5), start=st.floats(0.05, 0.95), end=st.floats(0.05, 0.95))
def test_closed_form_decrease(loss, C, start, end):
    y = column(1.0)
    a, b = inside(loss, start, y, C), inside(loss, end, y, C)
    plain = loss.conjugate(b, y, C) - loss.conjugate(a, y, C) - loss.gradient(a, y, C) * (b - a)
    torch.testing.assert_close(loss.bregman(a, b - a, y, C), plain, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("loss", "y", "lower", "upper"),
    [
        (Squared(), 1.0, -torch.inf, torch.inf),
        (Huber(0.5), -1.0, -1.0, 1.0),
        (EpsilonInsensitive(), 3.0, 0.0, 2.0),
        (SquaredHinge(), 1.0, 0.0, torch.inf),
        (SquaredHinge(), -1.0, -torch.inf, 0.0),
        (Hinge(), 1.0, 0.0, 2.0),
        (Hinge(), -1.0, -2.0, 0.0),
    ],
)
def test_boxes(loss, y, lower, upper):
    lo, hi = loss.box(column(y), 2.0)
    assert (lo.item(), hi.item()) == (lower, upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logistic_stays_finite_at_the_ends_of_its_box(dtype):
    y = torch.tensor([[1.0], [-1.0]], dtype=dtype)
    for a in Logistic().box(y, 128.0):
        for values in (
            Logistic().conjugate(a, y, 128.0),
            Logistic().gradient(a, y, 128.0),
            Logistic().curvature(a, y, 128.0),
        ):
            assert torch.isfinite(values).all()
        assert ((a * y > 0) & (a * y < 128)).all()


def test_values():
    y, u = torch.tensor([[1.0], [-1.0], [1.0]]), torch.tensor([[3.0], [0.5], [0.2]])
    expected = {
        Squared(): [2.0, 1.125, 0.32],
        Huber(1.0): [1.5, 1.0, 0.32],
        EpsilonInsensitive(0.5): [1.5, 1.0, 0.3],
        SquaredHinge(): [0.0, 1.125, 0.32],
        Hinge(): [0.0, 1.5, 0.8],
        Logistic(): [0.04858735, 0.97407699, 0.59813887],
    }
    for loss, values in expected.items():
        torch.testing.assert_close(loss.value(y, u)[:, 0], torch.tensor(values))
