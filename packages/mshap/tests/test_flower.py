"""The Flower strategy: hand-made messages, no network and no simulation engine."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid

    from icml25.mshap.flower import MShapStrategy, reply_evaluate, reply_train

from icml25.mshap import FedBRShap

NODES = [11, 22, 33]
CAPACITY = np.array([200.0, 120.0, 60.0])
GAMMA = np.array([1e-3, 2e-3, 1e-4])
TARGETS = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])


@pytest.fixture(autouse=True)
def server(monkeypatch):
    """Messages are stamped with the running server's identity, which there is none of here."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(identity, f"_{name}", 1)


class Nodes(Grid):
    def get_node_ids(self):
        return list(NODES)


Nodes.__abstractmethods__ = frozenset()


def train(i, params, n_samples):
    pull = n_samples / (n_samples + 100)
    return [params[0] + pull * (TARGETS[i] - params[0])]


def evaluate(i, params):
    return float(1 / (1 + np.sum((params[0] - TARGETS[i]) ** 2)))


def play(strategy, rounds, start, drop=None):
    arrays = ArrayRecord({"w": Array(start)})
    records = []
    for number in range(1, rounds + 1):
        replies = []
        for message in strategy.configure_train(number, arrays, ConfigRecord({}), Nodes()):
            node = message.metadata.dst_node_id
            i = NODES.index(node)
            replies.append(
                reply_train(
                    message,
                    lambda p, n, i=i: train(i, p, n),
                    capacity=CAPACITY[i].item(),
                    marginal_cost=GAMMA[i].item(),
                    epsilon_samples=20,
                )
            )
        arrays, _ = strategy.aggregate_train(number, replies)
        replies = []
        for message in strategy.configure_evaluate(number, arrays, ConfigRecord({}), Nodes()):
            node = message.metadata.dst_node_id
            i = NODES.index(node)
            if node != drop:
                replies.append(reply_evaluate(message, lambda p, i=i: evaluate(i, p)))
        records.append(strategy.aggregate_evaluate(number, replies))
    return arrays, records


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("models", [None, 3])
def test_strategy_does_what_the_loop_does(weighting, models):
    start = np.array([0.2, 0.1])
    strategy = MShapStrategy(step=2e4, init_samples=20, weighting=weighting, models_per_message=models)
    arrays, records = play(strategy, 3, start)
    loop = FedBRShap(3, CAPACITY, GAMMA, epsilon_samples=20, step=2e4, rounds=3, weighting=weighting)
    rounds = loop.run(train, evaluate, [start])
    np.testing.assert_allclose(arrays["w"].numpy(), loop.params[0], atol=1e-12)
    for record, done in zip(records, rounds, strict=True):
        payments = np.array([record[f"payment/{node}"] for node in NODES])
        np.testing.assert_allclose(payments, done.payments, atol=1e-12)
        assert abs(payments.sum()) < 1e-12
        assert np.abs(payments).max() > 1e-3
    np.testing.assert_allclose([strategy.contributions[node] for node in NODES], loop.contributions, atol=1e-6)
    np.testing.assert_allclose([strategy.payments[node] for node in NODES], loop.payments, atol=1e-12)


def test_samples_are_told_in_the_config():
    strategy = MShapStrategy(step=1.0, init_samples=7)
    strategy.contributions[22] = 31.5
    messages = strategy.configure_train(1, ArrayRecord({"w": Array(np.zeros(2))}), ConfigRecord({"lr": 0.1}), Nodes())
    told = {m.metadata.dst_node_id: m.content["config"]["samples"] for m in messages}
    assert told == {11: 7.0, 22: 31.5, 33: 7.0}
    assert all(m.content["config"]["lr"] == 0.1 for m in messages)


def test_a_node_that_does_not_evaluate_leaves_the_round_unsettled():
    strategy = MShapStrategy(step=2e4, init_samples=20)
    _, records = play(strategy, 1, np.zeros(2), drop=22)
    assert records == [None]
    assert strategy.payments == {} and set(strategy.contributions.values()) == {20.0}


def test_no_replies():
    strategy = MShapStrategy(step=1.0)
    assert strategy.aggregate_train(1, []) == (None, None)
    assert list(strategy.configure_evaluate(1, ArrayRecord({}), ConfigRecord({}), Nodes())) == []
    assert strategy.aggregate_evaluate(1, []) is None


def test_reply_without_epsilon_model_is_refused():
    strategy = MShapStrategy(step=1.0)
    message = strategy.configure_train(1, ArrayRecord({"w": Array(np.zeros(2))}), ConfigRecord({}), Nodes())[0]
    bare = Message(content=RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})}), reply_to=message)
    with pytest.raises(ValueError, match=r"node \d+ lacks arrays-epsilon, num-examples"):
        strategy.aggregate_train(1, [bare])


def test_models_of_another_shape_are_refused():
    def to_message():
        arrays = ArrayRecord({"w": Array(np.zeros(2))})
        return next(iter(strategy.configure_train(1, arrays, ConfigRecord({}), Nodes())))

    strategy, options = MShapStrategy(step=1.0), {"capacity": 100, "marginal_cost": 1e-3}
    with pytest.raises(ValueError, match="what train returned has arrays of shapes"):
        reply_train(to_message(), lambda p, n: [np.zeros(1)], **options)
    reply = reply_train(to_message(), lambda p, n: p, **options)
    reply.content["arrays"] = ArrayRecord({"w": Array(np.zeros(1))})
    with pytest.raises(ValueError, match=r"the train reply of node \d+ has arrays of shapes"):
        strategy.aggregate_train(1, [reply])


def test_state_survives_json():
    strategy = MShapStrategy(step=2e4, init_samples=20)
    play(strategy, 2, np.zeros(2))
    other = MShapStrategy(step=2e4, init_samples=20)
    other.load_state_dict(json.loads(json.dumps(strategy.state_dict())))
    assert other.contributions == strategy.contributions and other.payments == strategy.payments


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"step": 0}, "step"),
        ({"step": 1, "init_samples": 0}, "init_samples"),
        ({"step": 1, "weighting": "x"}, "weighting"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        MShapStrategy(**options)
