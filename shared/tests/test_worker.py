"""Which data sets a group of solvers is started on."""

from types import SimpleNamespace

from icml25.shared.worker import _problems, _usable


class Posed:
    def __init__(self, problem: str | None) -> None:
        self.problem = problem

    def get_data(self) -> dict:
        return {} if self.problem is None else {"problem": self.problem}


class Missing:
    def get_data(self) -> dict:
        raise FileNotFoundError("no such file")

    def __str__(self) -> str:
        return "missing"


def test_data_sets_of_other_problems_are_not_started() -> None:
    told = []
    tell = lambda event, **content: told.append((event, content))  # noqa: E731
    assert _usable(Posed("a"), [{"a", "b"}], tell)
    assert not _usable(Posed("c"), [{"a", "b"}], tell)
    assert not _usable(Posed("a"), [{"a", "b"}, {"b"}], tell)  # baselines of both, run for a package that solves b
    assert _usable(Posed("c"), [], tell)  # a track of one problem names none
    assert _usable(Posed(None), [], tell)
    assert not told


def test_solvers_that_name_no_problem_run_on_all() -> None:
    one, two, any_ = SimpleNamespace(problems=("a",)), SimpleNamespace(problems=("b", "c")), SimpleNamespace()
    assert _problems([one, two]) == {"a", "b", "c"}
    assert _problems([one, any_]) == set()
    assert _problems([]) == set()


def test_a_data_set_that_cannot_be_had_is_reported() -> None:
    told = []
    assert not _usable(Missing(), [{"a"}], lambda event, **content: told.append(content["unit"]))
    assert told == [
        {
            "dataset": "missing",
            "objective": "",
            "solver": "",
            "status": "error",
            "cached": False,
            "reason": "no such file",
        }
    ]
