"""FedBR-Shap as a Flower strategy (extra ``flower``), and the two replies that its clients give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from icml25.mshap.fedbr import Coalition, average, check_shapes, coalitions_of, draw_orders, estimate, extra_samples
from icml25.mshap.inputs import as_count, as_positive

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict  # pyright: ignore[reportMissingImports]
    from flwr.common.logger import log  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import Grid  # pyright: ignore[reportMissingImports]
    from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("icml25.mshap.flower needs Flower: pip install icml25-mshap[flower]") from error

SAMPLES, EPSILON, CAPACITY, MARGINAL_COST = "samples", "epsilon", "capacity", "marginal-cost"
_REPORTED = ("num-examples", EPSILON, CAPACITY, MARGINAL_COST)


class MShapStrategy(FedAvg):
    """FedAvg that tells every node how much to give, measures shares on coalitions, and logs payments that sum to 0.

    A round trains and then evaluates. The train message carries ``samples`` in its ConfigRecord; the reply
    (``reply_train``) brings two ArrayRecords, trained on s_i and on s_i + ε samples, and the node's ε, capacity and
    marginal cost. The evaluate messages carry the models of coalitions; the reply (``reply_evaluate``) brings an accuracy
    for each. The MetricRecord of the evaluation holds ``payment/<node>``, ``share/<node>``, ``accuracy/<node>`` and
    ``contribution/<node>``, the samples of the next round.

    Parameters
    ----------
    step : δ of the response s_i + δ(ĝ_i - c_i'), in samples² per unit of accuracy.
    init_samples : samples of a node's first round; 50 by default.
    num_permutations : None takes all n! up to 5 nodes, else ⌊n ln n⌋.
    weighting : "uniform" averages models as the paper does; "samples" weights them by their samples.
    models_per_message : most models in one evaluate message; None sends all in one.
    seed : of the permutations.
    fedavg : everything else goes to ``FedAvg`` (its ``fraction_evaluate`` is not used: every node that trained evaluates).

    Raises
    ------
    ImportError: Flower is missing. ValueError, TypeError: a parameter out of range.
    """

    def __init__(
        self,
        *,
        step: float | int,
        init_samples: int = 50,
        num_permutations: int | None = None,
        weighting: str = "uniform",
        models_per_message: int | None = None,
        seed: int = 0,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        self.step_size = as_positive("step", step)
        self.init_samples = as_count("init_samples", init_samples)
        self.num_permutations = None if num_permutations is None else as_count("num_permutations", num_permutations)
        self.models_per_message = (
            None if models_per_message is None else as_count("models_per_message", models_per_message)
        )
        if weighting not in ("uniform", "samples"):
            raise ValueError(f"weighting is {weighting!r}; expected 'uniform' or 'samples'")
        self.weighting, self.seed = weighting, seed
        self.contributions: dict[int, float] = {}
        self.payments: dict[int, float] = {}
        self._global: dict[str, np.ndarray] = {}
        self._nodes: list[int] = []

    def state_dict(self) -> dict[str, dict[str, float]]:
        """Contributions and payments so far, ready for JSON."""
        return {
            "contributions": {str(node): s for node, s in self.contributions.items()},
            "payments": {str(node): p for node, p in self.payments.items()},
        }

    def load_state_dict(self, state: dict[str, dict[str, float]]) -> None:
        """Continue from ``state_dict``."""
        self.contributions = {int(node): float(s) for node, s in state["contributions"].items()}
        self.payments = {int(node): float(p) for node, p in state["payments"].items()}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Train messages, each with the node's samples."""
        self._global = _numpy(arrays)
        messages = []
        for template in super().configure_train(server_round, arrays, config, grid):
            node = template.metadata.dst_node_id
            samples = self.contributions.setdefault(node, float(self.init_samples))
            told = ConfigRecord({**config, SAMPLES: samples})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: told})
            messages.append(Message(content=content, message_type=template.metadata.message_type, dst_node_id=node))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Mean of the nodes' models, and the coalitions to be evaluated."""
        valid, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        self._nodes = sorted(message.metadata.src_node_id for message in valid)
        if not valid:
            return None, None
        content = {message.metadata.src_node_id: message.content for message in valid}
        own, varied, reported = [], [], []
        for node in self._nodes:
            records, metrics = content[node].array_records, _metrics(content[node])
            missing = [key for key in (self.arrayrecord_key, _epsilon_key(self.arrayrecord_key)) if key not in records]
            missing += [key for key in _REPORTED if key not in metrics]
            if missing:
                raise ValueError(f"the train reply of node {node} lacks {', '.join(missing)}; see reply_train")
            own.append(_numpy(records[self.arrayrecord_key]))
            varied.append(_numpy(records[_epsilon_key(self.arrayrecord_key)]))
            for model in (own[-1], varied[-1]):
                check_shapes(f"the train reply of node {node}", model.values(), self._global.values())
            reported.append([float(metrics[key]) for key in _REPORTED])  # type: ignore[arg-type]
        samples, self._epsilon, self._capacity, self._marginal = np.array(reported).T
        self._orders = draw_orders(len(self._nodes), self.num_permutations, self.seed)
        self._coalitions = coalitions_of(self._orders)
        self._models = [self._model(c, own, varied, samples) for c in self._coalitions]
        everyone = self._models[self._coalitions.index((tuple(range(len(self._nodes))), None))]
        return _record(everyone), MetricRecord(
            {f"contribution/{node}": self.contributions[node] for node in self._nodes}
        )

    def _model(
        self,
        coalition: Coalition,
        own: list[dict[str, np.ndarray]],
        varied: list[dict[str, np.ndarray]],
        samples: np.ndarray,
    ) -> dict[str, np.ndarray]:
        members, changed = coalition
        models = [varied[i] if i == changed else own[i] for i in members]
        weights = np.ones(len(members))
        if self.weighting == "samples":
            weights = np.array([samples[i] + (self._epsilon[i] if i == changed else 0.0) for i in members])
        return average(models, weights) if weights.sum() > 0 else self._global

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate messages with the models of coalitions."""
        config["server-round"] = server_round
        size = self.models_per_message or max(1, len(self._coalitions)) if self._nodes else 1
        messages = []
        for start in range(0, len(self._coalitions) if self._nodes else 0, size):
            records = {f"coalition-{start + k}": _record(m) for k, m in enumerate(self._models[start : start + size])}
            content = RecordDict({**records, self.configrecord_key: config})
            messages += self._construct_messages(content, self._nodes, "evaluate")
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Shares, payments and the next contributions from the nodes' accuracies."""
        valid, _ = self._check_and_log_replies(replies, is_train=False, validate=False)
        if not self._nodes:
            return None
        position = {node: i for i, node in enumerate(self._nodes)}
        accuracies = np.full((len(self._coalitions), len(self._nodes)), np.nan)
        for message in valid:
            for name, value in _metrics(message.content).items():
                if name.startswith("coalition-"):
                    accuracies[int(name.removeprefix("coalition-")), position[message.metadata.src_node_id]] = value
        if not np.isfinite(accuracies).all():
            absent = [self._nodes[i] for i in np.flatnonzero(~np.isfinite(accuracies).all(0))]
            log(
                logging.WARNING,
                "round %s is not settled: nodes %s did not evaluate all coalitions",
                server_round,
                absent,
            )
            return None
        totals = dict(zip(self._coalitions, accuracies.sum(1).tolist(), strict=True))
        shares, gradient = estimate(self._orders, totals, self._epsilon)
        final = accuracies[self._coalitions.index((tuple(range(len(self._nodes))), None))]
        payments = shares - (final - accuracies[self._coalitions.index(((), None))])
        told = np.array([self.contributions[node] for node in self._nodes])
        response = np.clip(told + self.step_size * (gradient - self._marginal), 0, self._capacity)
        self.contributions.update(zip(self._nodes, response.tolist(), strict=True))
        for node, payment in zip(self._nodes, payments.tolist(), strict=True):
            self.payments[node] = self.payments.get(node, 0.0) + payment
        columns = {"payment": payments, "share": shares, "accuracy": final, "contribution": response}
        return MetricRecord(
            {
                f"{name}/{node}": float(x)
                for name, column in columns.items()
                for node, x in zip(self._nodes, column, strict=True)
            }
        )


def reply_train(
    message: Message,
    train: Callable[[list[np.ndarray], int], list[np.ndarray]],
    *,
    capacity: float | int,
    marginal_cost: float | int | Callable[[float], float],
    epsilon_samples: int = 50,
    arrayrecord_key: str = "arrays",
    configrecord_key: str = "config",
) -> Message:
    """A node's reply to a train message of ``MShapStrategy``.

    Parameters
    ----------
    message : what the ClientApp's train function got.
    train : ``train(params, n_samples)`` returns the parameters reached on the node's first ``n_samples`` samples.
    capacity : samples that the node has.
    marginal_cost : cost of one more sample in units of accuracy, or a function of the contribution.
    epsilon_samples : ε; 50 by default.
    arrayrecord_key, configrecord_key : as in the strategy.

    Returns
    -------
    Message to return from the ClientApp.
    """
    record = message.content.array_records[arrayrecord_key]
    s = float(message.content.config_records[configrecord_key][SAMPLES])  # type: ignore[arg-type]
    samples = min(round(s), int(capacity))
    extra = int(
        extra_samples(np.array([samples]), np.array([float(capacity)]), as_count("epsilon_samples", epsilon_samples))[0]
    )

    def trained(count: int) -> ArrayRecord:
        params = record.to_numpy_ndarrays()
        result = train(params, count) if count else params
        check_shapes("what train returned", result, record.to_numpy_ndarrays())
        return _record(dict(zip(record.keys(), result, strict=True)))

    own = trained(samples)
    marginal = marginal_cost(s) if callable(marginal_cost) else marginal_cost
    metrics = MetricRecord(
        {"num-examples": samples, EPSILON: extra, CAPACITY: float(capacity), MARGINAL_COST: float(marginal)}
    )
    content = RecordDict(
        {
            arrayrecord_key: own,
            _epsilon_key(arrayrecord_key): trained(samples + extra) if extra else own,
            "metrics": metrics,
        }
    )
    return Message(content=content, reply_to=message)


def reply_evaluate(message: Message, evaluate: Callable[[list[np.ndarray]], float]) -> Message:
    """A node's reply to an evaluate message: ``evaluate(params)`` is its test accuracy, asked once per coalition."""
    scores = {
        name: float(evaluate(record.to_numpy_ndarrays())) for name, record in message.content.array_records.items()
    }
    return Message(content=RecordDict({"metrics": MetricRecord(dict(scores))}), reply_to=message)


def _epsilon_key(arrayrecord_key: str) -> str:
    return f"{arrayrecord_key}-epsilon"


def _numpy(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def _record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _metrics(content: RecordDict) -> dict[str, Any]:
    return {name: value for record in content.metric_records.values() for name, value in record.items()}
