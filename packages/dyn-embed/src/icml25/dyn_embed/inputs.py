"""Checks of what users pass, and their graphs as arrays."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable
from numbers import Integral, Real
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

__all__ = [
    "Flag",
    "GraphLike",
    "Node",
    "Number",
    "Seed",
    "check_flag",
    "check_graph",
    "check_integer",
    "check_node",
    "check_number",
    "check_seed",
    "check_tuple",
    "check_weight",
    "edge_weight",
    "index_graph",
    "length_matrix",
    "set_edge",
]

# Types of arguments that are checked here, with errors that name them.
GraphLike: TypeAlias = Any  # networkx.Graph
Node: TypeAlias = Any  # any hashable but None
Number: TypeAlias = Any  # int or float, of Python or numpy
Flag: TypeAlias = Any  # bool
Seed: TypeAlias = Any  # int, numpy.random.Generator or None

SMALLEST, LARGEST = 1e-200, 1e200  # so that sums, products with n and powers of 2 stay within float64


class EdgeData(dict):
    """Attributes of an edge, written once: views of the graph cannot change what the embedding was told."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise nx.NetworkXError("The graph of an embedding is read-only; change weights with update_edge")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = _refuse  # type: ignore[assignment]

    def update(self, *args: Any, **attributes: Any) -> None:
        """Write the attributes for the first time."""
        if self:
            self._refuse()
        super().update(*args, **attributes)

    def __reduce__(self) -> tuple[type, tuple[dict[str, float]]]:
        return type(self), (dict(self),)


class CheckedGraph(nx.Graph):
    """The embedding's own copy of a graph."""

    edge_attr_dict_factory = EdgeData


def set_edge(graph: nx.Graph, u: Hashable, v: Hashable, weight: float) -> None:
    """Add an edge to a checked graph, or change its weight."""
    if graph.has_edge(u, v):
        graph.remove_edge(u, v)
    graph.add_edge(u, v, weight=weight)


def check_weight(u: Hashable, v: Hashable, value: Any) -> float:
    """The weight of an edge as a float, or an error that names the edge."""
    edge = f"weight of the edge ({u!r}, {v!r})"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{edge} is {value!r} ({type(value).__name__}); expected a positive finite number")
    weight = float(value)
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"{edge} is {value!r}; expected a positive finite number")
    if not SMALLEST <= weight <= LARGEST:
        raise ValueError(f"{edge} is {value!r}; expected a number in [{SMALLEST:g}, {LARGEST:g}]: rescale the weights")
    return weight


def check_node(node: Any) -> Hashable:
    """A node label, or an error: any hashable but None, as in networkx."""
    if node is None:
        raise ValueError("None cannot be a node")
    try:
        hash(node)
    except TypeError as error:
        raise TypeError(f"node {node!r} is not hashable") from error
    if node != node:
        raise ValueError(f"node {node!r} does not equal itself")
    return node


def check_tuple(name: str, item: Any, sizes: tuple[int, ...], expected: str) -> tuple[Any, ...]:
    """An entry of a collection of pairs or edges as a tuple."""
    parts = () if isinstance(item, (str, bytes)) or not isinstance(item, Iterable) else tuple(item)
    if len(parts) not in sizes:
        raise ValueError(f"{name} contains {item!r}; expected {expected}")
    return parts


def check_graph(graph: Any, weight: str | None) -> nx.Graph:
    """A copy of the graph whose edges carry nothing but checked weights, under the name "weight"."""
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a networkx.Graph")
    if graph.is_directed() or graph.is_multigraph():
        raise nx.NetworkXNotImplemented(f"graph is a {type(graph).__name__}; expected an undirected networkx.Graph")
    copy = CheckedGraph()
    copy.add_nodes_from(check_node(node) for node in graph)
    found = weight is None
    for u, v, data in graph.edges(data=True):
        if u == v:
            raise ValueError(f"the graph has a self loop at {u!r}; expected none")
        found = found or weight in data
        copy.add_edge(u, v, weight=check_weight(u, v, 1.0 if weight is None else data.get(weight, 1.0)))
    if not found and graph.number_of_edges():
        others = sorted({str(name) for *_, data in graph.edges(data=True) for name in data})
        if others or weight != "weight":
            warnings.warn(
                f"no edge has the attribute {weight!r} (there is: {', '.join(others) or 'nothing'}), so every edge weighs 1; "
                "pass weight=None if that is meant",
                stacklevel=3,
            )
    return copy


def edge_weight(graph: nx.Graph, u: Node, v: Node) -> float:
    """Weight of an edge of a checked graph, or networkx's error."""
    if not graph.has_edge(u, v):
        raise nx.NetworkXError(f"The edge {u!r}-{v!r} is not in the graph")
    return graph[u][v]["weight"]


def index_graph(graph: nx.Graph) -> tuple[list[Hashable], Int[np.ndarray, "m 2"], Float[np.ndarray, " m"]]:
    """Nodes of a checked graph, the positions of the end points of its edges among them, and the weights."""
    nodes = list(graph)
    index = {node: i for i, node in enumerate(nodes)}
    ends = np.array([(index[u], index[v]) for u, v in graph.edges], dtype=np.int64).reshape(-1, 2)
    weights = np.array([w for *_, w in graph.edges(data="weight")], dtype=np.float64)
    return nodes, ends, weights


def length_matrix(n: int, ends: Int[np.ndarray, "m 2"], weights: Float[np.ndarray, " m"]) -> csr_array:
    """Symmetric sparse matrix of the edge lengths."""
    rows, columns = np.concatenate([ends, ends[:, ::-1]]).T
    return csr_array((np.concatenate([weights, weights]), (rows, columns)), shape=(n, n), dtype=np.float64)


def check_integer(name: str, value: Any, low: int) -> int:
    """An integer of at least `low`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); expected an integer >= {low}")
    if value < low:
        raise ValueError(f"{name} is {value!r}; expected an integer >= {low}")
    return int(value)


def check_number(name: str, value: Any, low: float, *, open_low: bool = False, infinite: bool = False) -> float:
    """A real number above a bound."""
    expected = f"a {'number' if infinite else 'finite number'} {'>' if open_low else '>='} {low:g}"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); expected {expected}")
    number = float(value)
    if math.isnan(number) or number < low or (open_low and number == low) or (math.isinf(number) and not infinite):
        raise ValueError(f"{name} is {value!r}; expected {expected}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); expected True or False")
    return bool(value)


def check_seed(seed: Any) -> np.random.Generator:
    """A generator from a seed."""
    if seed is None or isinstance(seed, np.random.Generator):
        return np.random.default_rng(seed)
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, Integral):
        raise TypeError(
            f"seed is {seed!r} ({type(seed).__name__}); expected an integer >= 0, a numpy Generator or None"
        )
    return np.random.default_rng(check_integer("seed", seed, 0))
