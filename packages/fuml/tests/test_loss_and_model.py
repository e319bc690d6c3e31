"""Loss and network against a literal transcription of the equations, written with loops."""

import pytest
import torch
from torch import nn

from icml25.fuml import (
    FUML,
    FUMLOutput,
    ViewMLP,
    category_credibility_loss,
    fuml_loss,
    fuse,
    fusion_weights,
    memberships,
    training_credibility,
)


def literal(logits, y, p=3.0):
    """Eqs. 1-9 for one batch, one sample, one view and one class at a time, in training (y) or at test time (None)."""
    views, batch, classes = logits.shape
    log = torch.log

    def entropy(c):
        return sum(-t * log(t.clamp_min(1e-300)) - (1 - t) * log((1 - t).clamp_min(1e-300)) for t in c) / (
            classes * log(torch.tensor(2.0, dtype=c.dtype))
        )

    def cred(m, label):
        out = []
        for k in range(classes):
            if label is None or k == label:
                rival = torch.stack([m[j] for j in range(classes) if j != k]).max()
            else:
                rival = m[label]
            out.append((m[k] + (1 - rival)) / 2)
        return torch.stack(out)

    def ccl(r, label):
        terms = [log((r[k] if k == label else 1 - r[k]).clamp_min(1e-7)) for k in range(classes)]
        return -sum(terms)

    loss, fused, uncertainties = 0.0, [], []
    for i in range(batch):
        label = None if y is None else int(y[i])
        m = [torch.relu(logits[v, i] / (logits[v, i].abs() ** p).sum() ** (1 / p)) for v in range(views)]
        c = [cred(m[v], label) for v in range(views)]
        reliability = []
        for v in range(views):
            cosines = [m[v] @ m[j] / (m[v].norm() * m[j].norm()) for j in range(views) if j != v]
            o = sum(1 - x for x in cosines) / (views - 1)
            reliability.append(torch.exp((1 - entropy(c[v])) * (1 - o)))
        m_a = sum(reliability[v] / sum(reliability) * m[v] for v in range(views))
        r_a = cred(m_a, label)
        fused.append(m_a)
        uncertainties.append(entropy(r_a))
        if y is not None:
            loss = loss + (ccl(r_a, label) + sum(ccl(c[v], label) for v in range(views))) / batch
    return torch.stack(fused), torch.stack(uncertainties), loss


@pytest.fixture
def logits():
    a = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a[..., 0] += 1.0  # no sample without a positive logit
    return a


class Identity(nn.Module):
    def forward(self, x):
        return x


def identity_model(views=3, **kwargs):
    return FUML([Identity() for _ in range(views)], 4, **kwargs)


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_training_equals_the_literal_equations(logits, p):
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    out = identity_model(p=p)(list(a), labels=y)
    loss = fuml_loss(out, y)
    m, u, expected = literal(b, y, p)
    torch.testing.assert_close(out.membership, m, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(out.uncertainty, u, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(loss, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(loss, a)[0], torch.autograd.grad(expected, b)[0], atol=1e-8, rtol=1e-6
    )


def test_prediction_equals_the_literal_equations(logits):
    out = identity_model()(list(logits))
    m, u, _ = literal(logits, None)
    torch.testing.assert_close(out.membership, m, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(out.uncertainty, u, atol=1e-9, rtol=1e-9)


def test_gradient_of_the_loss(logits):
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    model = identity_model()
    a = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: fuml_loss(model(list(a), labels=y), y), a)


def test_loss_of_one_view_counts_the_decision_twice(logits):
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    out = identity_model(1)([logits[0]], labels=y)
    expected = 2 * category_credibility_loss(out.view_credibility[0], y)
    torch.testing.assert_close(fuml_loss(out, y), expected)


def test_loss_sums_over_classes_and_floors_the_log():
    r = torch.tensor([[0.9, 0.2], [0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([0, 0])
    first = -(torch.tensor(0.9).log() + torch.tensor(0.8).log()).item()
    second = -2 * torch.tensor(1e-7).log().item()
    losses = category_credibility_loss(r, y, reduction="none")
    assert losses.tolist() == pytest.approx([first, second], rel=1e-6)
    assert category_credibility_loss(r, y, reduction="sum").item() == pytest.approx(first + second, rel=1e-6)
    assert category_credibility_loss(r, y).item() == pytest.approx((first + second) / 2, rel=1e-6)
    with pytest.raises(ValueError, match="reduction"):
        category_credibility_loss(r, y, reduction="median")


def test_sample_weights_scale_the_losses(logits):
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    out = identity_model()(list(logits), labels=y)
    each = category_credibility_loss(out.credibility, y, "none") + sum(
        category_credibility_loss(r, y, "none") for r in out.view_credibility
    )
    w = torch.arange(6, dtype=torch.float64)
    torch.testing.assert_close(fuml_loss(out, y, w), (w * each).mean())


def test_labels_not_training_mode_decide_the_credibility(logits):
    y = torch.tensor([1, 1, 1, 1, 1, 1])
    model = identity_model().eval()
    assert not torch.equal(model(list(logits), labels=y).credibility, model(list(logits)).credibility)
    assert torch.equal(model.train()(list(logits)).credibility, model.eval()(list(logits)).credibility)


def test_loss_refuses_an_output_of_other_labels(logits):
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    model = identity_model()
    with pytest.raises(ValueError, match="labels=y"):
        fuml_loss(model(list(logits)), y)
    with pytest.raises(ValueError, match="other labels"):
        fuml_loss(model(list(logits), labels=y), y.flip(0))
    with pytest.raises(ValueError, match=r"labels in 0\.\.3"):
        model(list(logits), labels=y + 1)


BAD_LABELS = {
    "float": torch.zeros(6),
    "bool": torch.zeros(6, dtype=torch.bool),
    "too few": torch.zeros(5, dtype=torch.int64),
    "one": torch.zeros(1, dtype=torch.int64),
    "scalar": torch.tensor(0),
    "column": torch.zeros(6, 1, dtype=torch.int64),
}


@pytest.mark.parametrize("y", BAD_LABELS.values(), ids=BAD_LABELS.keys())
def test_labels_of_another_shape_or_dtype_are_refused(logits, y):
    """Type-checked runs refuse them by the annotation."""
    m, model = memberships(logits[0]), identity_model()
    out = model(list(logits), labels=torch.zeros(6, dtype=torch.int64))
    for function in (training_credibility, category_credibility_loss):
        with pytest.raises((TypeError, ValueError), match=r"\by\b"):
            function(m, y)
    with pytest.raises((TypeError, ValueError), match=r"\by\b"):
        fuml_loss(out, y)
    for function in (model, model.from_logits):
        with pytest.raises((TypeError, ValueError), match=r"\blabels\b"):
            function(list(logits), y)


def test_labels_of_any_integer_dtype_and_weights_per_sample(logits):
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    out = identity_model()(list(logits), labels=y.int())
    torch.testing.assert_close(fuml_loss(out, y), fuml_loss(identity_model()(list(logits), labels=y), y))
    with pytest.raises((TypeError, ValueError), match="sample_weight"):
        fuml_loss(out, y, torch.ones(6, 1, dtype=torch.float64))


def test_the_network_fuses_by_its_mode(logits):
    outs = {mode: identity_model(fusion=mode)(list(logits)) for mode in ("drf", "average", "uncertainty", "conflict")}
    for mode, out in outs.items():
        torch.testing.assert_close(out.weights, fusion_weights(out.view_uncertainty, out.conflict, mode))
        torch.testing.assert_close(out.membership, fuse(out.view_membership, out.weights))
        assert all(other is out or not torch.allclose(other.weights, out.weights) for other in outs.values())


def test_a_dead_view_is_uncertain_in_conflict_and_still_weighs(logits):
    dead = torch.full_like(logits[0], -1.0)
    out = identity_model()([logits[0], logits[1], dead])
    assert out.view_uncertainty[2].tolist() == [1] * 6
    assert out.conflict[2].tolist() == pytest.approx([1] * 6)
    assert (out.weights[2] > 0).all()
    assert torch.equal(
        out.membership.argmax(-1),
        (out.weights[0, :, None] * out.view_membership[0] + out.weights[1, :, None] * out.view_membership[1]).argmax(
            -1
        ),
    )


def test_all_logits_dead():
    a = torch.zeros(2, 5, 3, requires_grad=True)
    y = torch.zeros(5, dtype=torch.int64)
    out = FUML([Identity(), Identity()], 3)(list(a), labels=y)
    assert out.uncertainty.tolist() == [1] * 5
    fuml_loss(out, y).backward()
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_forward_and_backward_in_other_precisions(dtype):
    model = FUML([3, 5], 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    x = [torch.rand(6, d, generator=generator).to(dtype) for d in (3, 5)]
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    out = model(x, labels=y)
    assert isinstance(out, FUMLOutput)
    assert out.weights.dtype == dtype
    fuml_loss(out, y).backward()
    assert all(torch.isfinite(q.grad).all() for q in model.parameters())


def test_network_shape():
    net = ViewMLP(7, 3, n_layers=3)
    assert [tuple(q.shape) for q in net.parameters()] == [(7, 7), (7,), (7, 7), (7,), (3, 7), (3,)]
    assert [tuple(q.shape) for q in ViewMLP(7, 3, n_layers=1).parameters()] == [(3, 7), (3,)]
    wide = ViewMLP(1, 3, n_layers=2, hidden_width=9, head_bias=0.5)
    assert [tuple(q.shape) for q in wide.parameters()] == [(9, 1), (9,), (3, 9), (3,)]
    assert torch.equal(wide.head.bias, torch.full((3,), 0.5))


def test_dropout_keeps_the_mean_and_follows_its_generator():
    net = ViewMLP(200, 2, n_layers=2, dropout=0.25)
    with torch.no_grad():
        net.hidden[0].weight.copy_(torch.eye(200))
        net.hidden[0].bias.zero_()
        net.head.weight.fill_(1 / 200)
        net.head.bias.zero_()
    x = torch.ones(2000, 200)
    first, second = (net(x, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.mean().item() == pytest.approx(1, abs=0.01)
    # each of 200 units is 1/0.75 with probability 0.75: variance of the mean = 0.25 / 0.75 / 200
    assert first[:, 0].var().item() == pytest.approx(0.25 / 0.75 / 200, rel=0.15)
    torch.testing.assert_close(net.eval()(x), torch.ones(2000, 2))


def test_initial_weights_follow_their_generator_and_torch_s_default_range():
    nets = [FUML([16, 4], 3, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    first, same, other = (torch.cat([q.flatten() for q in net.parameters()]) for net in nets)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    w = nets[0].backbones[0].hidden[0].weight
    assert w.abs().max() <= 0.25
    assert w.std().item() == pytest.approx(0.5 / 12**0.5, rel=0.1)


def test_an_explicit_generator_leaves_the_global_one_alone():
    x = torch.ones(2, 5)
    state = torch.random.get_rng_state()
    net = ViewMLP(5, 3, generator=torch.Generator().manual_seed(0))
    net(x, torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_state_dict_round_trip():
    source, target = (FUML([3, 2], 4, generator=torch.Generator().manual_seed(s)).eval() for s in (0, 1))
    target.load_state_dict(source.state_dict())
    x = [torch.rand(5, 3), torch.rand(5, 2)]
    assert torch.equal(source(x).credibility, target(x).credibility)


def test_own_backbones_train():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    views = [torch.eye(3)[y] + 0.1 * torch.randn(60, 3, generator=generator) for _ in range(2)]
    nets = [nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)) for _ in range(2)]
    for net in nets:
        for layer in (net[0], net[2]):
            nn.init.eye_(layer.weight)
            nn.init.constant_(layer.bias, 0.5)
    model = FUML(nets, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = fuml_loss(model(views, labels=y), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert (model(views).credibility.argmax(-1) == y).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(backbones=[], n_classes=3), ValueError, "empty"),
        (dict(backbones=[3], n_classes=1), ValueError, "n_classes must be >= 2"),
        (dict(backbones=[3], n_classes=3, p=0.5), ValueError, "p must be"),
        (dict(backbones=[3], n_classes=3, fusion="mean"), ValueError, "fusion must be one of"),
        (dict(backbones=[3], n_classes=3, dropout=1.0), ValueError, r"dropout must be in \[0, 1\)"),
        (dict(backbones=[0], n_classes=3), ValueError, "n_features"),
        (dict(backbones=[3], n_classes=3, n_layers=0), ValueError, "n_layers"),
        (dict(backbones=[3, nn.Linear(3, 3)], n_classes=3), TypeError, "backbones|type"),
    ],
)
def test_bad_network(arguments, error, message):
    with pytest.raises(error, match=message):
        FUML(**arguments)


def test_bad_views():
    model = FUML([3, 2], 4)
    with pytest.raises(ValueError, match="must hold 2 views, got 1"):
        model([torch.rand(5, 3)])
    with pytest.raises(ValueError, match="logits"):
        model([torch.rand(5, 3), torch.rand(4, 2)])
    with pytest.raises(ValueError, match="logits"):
        FUML([Identity()], 4)([torch.rand(5, 3)])


def test_dead_class_gets_no_gradient():
    """Why `head_bias` exists: a class whose logit is negative for a sample gets its gradient through the norm alone."""
    a = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    memberships(a).sum().backward()
    assert torch.equal(a.grad, torch.zeros(1, 2))
