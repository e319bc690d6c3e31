"""Memberships, credibilities and uncertainty against closed forms, brute force and their invariances."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icml25.fuml import category_credibility_loss, credibility, memberships, training_credibility, uncertainty

unit = st.floats(0, 1, width=32)


def vectors(low=2, high=6, elements=unit):
    return st.integers(low, high).flatmap(lambda k: st.lists(elements, min_size=k, max_size=k))


def other_maximum(m, k):
    return max(value for j, value in enumerate(m) if j != k)


def test_memberships_of_a_known_vector():
    m = memberships(torch.tensor([1.0, 2.0, -2.0, 0.0]), p=3)
    norm = 17 ** (1 / 3)
    assert norm == pytest.approx(2.5713, abs=1e-4)
    torch.testing.assert_close(m, torch.tensor([1 / norm, 2 / norm, 0.0, 0.0]))
    torch.testing.assert_close(m, torch.tensor([0.3889, 0.7778, 0.0, 0.0]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 2.5])
def test_memberships_divide_by_the_p_norm(p):
    a = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = (a / torch.linalg.vector_norm(a, ord=p, dim=-1, keepdim=True)).clamp_min(0)
    torch.testing.assert_close(memberships(a, p), expected)


@pytest.mark.parametrize("scale", [1e-15, 1e-6, 1e6, 1e15])
def test_memberships_do_not_depend_on_scale(scale):
    a = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(memberships(scale * a), memberships(a))


def test_memberships_of_dead_logits_are_zero_with_finite_gradient():
    a = torch.zeros(2, 3, requires_grad=True)
    m = memberships(a)
    assert torch.equal(m, torch.zeros(2, 3))
    m.sum().backward()
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", ["smallest", "tiny"])
def test_memberships_of_tiny_logits_have_a_finite_gradient(dtype, size):
    unit = getattr(torch.finfo(dtype), {"smallest": "smallest_normal", "tiny": "tiny"}[size])
    unit = unit * (torch.finfo(dtype).eps if size == "smallest" else 1)
    a = (unit * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)).to(dtype).requires_grad_()
    m = memberships(a)
    (m * m).sum().backward()
    assert torch.isfinite(m).all() and torch.isfinite(a.grad).all()


@given(vectors(elements=st.floats(-1e4, 1e4, width=32)))
def test_memberships_lie_in_the_unit_interval(a):
    m = memberships(torch.tensor(a))
    assert ((m >= 0) & (m <= 1 + 1e-6)).all()


@given(vectors())
def test_credibility_by_brute_force(m):
    c = credibility(torch.tensor(m, dtype=torch.float64))
    expected = [(m[k] + 1 - other_maximum(m, k)) / 2 for k in range(len(m))]
    assert c.tolist() == pytest.approx(expected, abs=1e-15)
    assert ((c >= 0) & (c <= 1)).all()


@given(vectors(elements=st.sampled_from([0.0, 0.25, 1.0])))
def test_credibility_with_ties(m):
    c = credibility(torch.tensor(m))
    assert c.tolist() == [(m[k] + 1 - other_maximum(m, k)) / 2 for k in range(len(m))]


@given(vectors(2, 2))
def test_credibilities_of_two_classes_sum_to_one(m):
    assert credibility(torch.tensor(m, dtype=torch.float64)).sum().item() == pytest.approx(1, abs=1e-15)


@given(vectors(), st.data())
def test_training_credibility_by_brute_force(m, data):
    y = data.draw(st.integers(0, len(m) - 1))
    r = training_credibility(torch.tensor(m, dtype=torch.float64), torch.tensor(y))
    expected = [(m[k] + 1 - (other_maximum(m, y) if k == y else m[y])) / 2 for k in range(len(m))]
    assert r.tolist() == pytest.approx(expected, abs=1e-15)


@given(vectors())
def test_training_credibility_is_credibility_where_the_label_wins(m):
    m = torch.tensor(m)
    assert torch.equal(training_credibility(m, m.argmax()), credibility(m))


def test_a_wrong_class_pushes_up_the_membership_of_the_label():
    m = torch.tensor([0.2, 0.5, 0.4], dtype=torch.float64, requires_grad=True)
    training_credibility(m, torch.tensor(0))[2].backward()  # class 2 is wrong: lowering r_2 must raise m_0
    assert m.grad.tolist() == [-0.5, 0.0, 0.5]


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_uncertainty_of_a_constant_membership_is_one(value):
    assert uncertainty(credibility(torch.full((5,), value))).item() == 1


def test_uncertainty_of_a_one_hot_membership_is_zero():
    assert uncertainty(credibility(torch.eye(4))).tolist() == [0, 0, 0, 0]


def test_uncertainty_is_the_mean_binary_entropy_in_bits():
    c = [0.9, 0.2, 0.5]
    entropy = [-t * math.log(t) - (1 - t) * math.log(1 - t) for t in c]
    expected = sum(entropy) / (3 * math.log(2))
    assert uncertainty(torch.tensor(c, dtype=torch.float64)).item() == pytest.approx(expected, abs=1e-14)


@given(vectors())
def test_uncertainty_lies_in_the_unit_interval(m):
    assert 0 <= uncertainty(credibility(torch.tensor(m))).item() <= 1


def test_uncertainty_has_a_finite_gradient_at_credibilities_of_zero_and_one():
    a = torch.tensor([[30.0, -0.01, -0.01], [1.0, 0.0, 0.0]], requires_grad=True)
    c = credibility(memberships(a))
    assert 0 in c and 1 in c
    u = uncertainty(c)
    u.sum().backward()
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("function", [memberships, credibility])
def test_functions_are_equivariant_over_classes(function):
    x = torch.rand(6, 5, generator=torch.Generator().manual_seed(2))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(function(x[:, order]), function(x)[:, order])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_dtype_and_leading_dimensions_are_kept(dtype, shape):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    m = memberships(a)
    y = torch.zeros(shape[:-1], dtype=torch.int64)
    for out in (m, credibility(m), training_credibility(m, y)):
        assert out.dtype == dtype
        assert out.shape == shape
    assert uncertainty(m).shape == shape[:-1]
    reference = credibility(memberships(a.double()))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(credibility(m).double(), reference, atol=tolerance, rtol=0)


def test_gradients_of_credibility_and_uncertainty():
    a = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    y = torch.tensor([0, 1, 2, 3, 0])
    assert torch.autograd.gradcheck(lambda a: uncertainty(credibility(memberships(a))), a)
    assert torch.autograd.gradcheck(lambda a: training_credibility(memberships(a), y), a)


@pytest.mark.parametrize("p", [0, 0.5, -1, math.inf, math.nan])
def test_norm_order_out_of_range(p):
    with pytest.raises(ValueError, match="p must be a finite number >= 1"):
        memberships(torch.ones(3), p)


@pytest.mark.parametrize(
    "function",
    [
        memberships,
        credibility,
        uncertainty,
        lambda m: training_credibility(m, torch.tensor([0])),
        lambda m: category_credibility_loss(m, torch.tensor([0])),
    ],
)
def test_one_class_is_refused(function):
    with pytest.raises(ValueError, match="at least 2 classes"):
        function(torch.ones(1, 1))


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_out_of_range(label):
    with pytest.raises(ValueError, match=r"labels in 0\.\.2"):
        training_credibility(torch.rand(2, 3), torch.tensor([0, label]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cpu_and_cuda_agree():
    a = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(5))
    c, c_cuda = (uncertainty(credibility(memberships(x))) for x in (a, a.cuda()))
    torch.testing.assert_close(c, c_cuda.cpu(), atol=1e-5, rtol=0)


def test_membership_order_is_the_order_of_logits():
    for a in itertools.permutations([3.0, 1.0, 0.5]):
        assert memberships(torch.tensor(a)).argsort().tolist() == torch.tensor(a).argsort().tolist()
