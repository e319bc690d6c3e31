"""Self-RIP with deterministic models."""

import numpy as np
import pandas as pd
import pytest

from icml25.rip import RIPFilter
from icml25.rip.self_rip import BEGIN, END, few_shot_text, parse_prompts, rouge_l, self_rip, unfit


def words(text: str) -> list[str]:
    rng = np.random.default_rng(list(text.encode()))
    return ["".join(rng.choice(list("abcdefgh"), 7)) for _ in range(6)]


class Model:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, texts: list[str]) -> list[str]:
        self.texts += texts
        return [" ".join(words(text)) + END + f"\n10. {BEGIN}cut off here" for text in texts]

    def sample(self, prompts: list[str], n: int) -> list[list[str]]:
        return [[f"{p} {'y' * (7 * i + len(p) % 5)}" for i in range(n)] for p in prompts]

    def reward(self, prompts: list[str], responses: list[list[str]]) -> list[list[float]]:
        return [
            np.random.default_rng(list(p.encode())).normal(size=len(r)).tolist()
            for p, r in zip(prompts, responses, strict=True)
        ]


SEEDS = [" ".join(words(f"seed {i}")) for i in range(80)]


def run(model: Model, **settings):
    given = {"n_prompts": 30, "n_responses": 6, "filter": RIPFilter(0.3)} | settings
    return self_rip(SEEDS, model.write, model.sample, model.reward, **given)


def test_shots_and_thresholds() -> None:
    model = Model()
    out = run(model)
    first = RIPFilter(0.3)
    responses = model.sample(SEEDS, 6)
    human = [
        {"prompt": p, "responses": y, "rewards": r}
        for p, y, r in zip(SEEDS, responses, model.reward(SEEDS, responses), strict=True)
    ]
    pool = {row["prompt"] for row in first.fit_transform(human)}
    assert 8 <= len(pool) < len(SEEDS) and out.stats["n_pool"] == len(pool)
    for text in model.texts:
        shots = parse_prompts(text)
        assert len(shots) == len(set(shots)) == 8 and set(shots) <= pool
        assert text.endswith(f"9. {BEGIN}")
    assert len(out.prompts) == len(set(out.prompts)) == 30 and not pool & set(out.prompts)
    assert out.stats["thresholds"] == first.thresholds_
    again = RIPFilter(thresholds=first.thresholds_).fit(out.frame)
    assert again.transform(out.frame).equals(out.kept)
    assert 0 < len(out.kept) < 30
    assert run(Model()).prompts == out.prompts
    assert run(Model(), seed=1).prompts != out.prompts


def test_refit_takes_other_thresholds() -> None:
    first, refitted = run(Model()), run(Model(), refit=True)
    assert refitted.prompts == first.prompts and refitted.stats["thresholds"] != first.stats["thresholds"]


def test_rouge_l() -> None:
    assert rouge_l("a b c d", "a b x d") == pytest.approx(0.75)
    assert rouge_l("A, b c d", "a x c y") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a b c", "short"),
        ("a b c d", ""),
        (" ".join(["w"] * 150), ""),
        (" ".join(["w"] * 151), "long"),
        ("please draw me a cat", "keyword"),
        ("Go to the next shop", "keyword"),
        ("the drawing of a mapping", ""),
        ("Write a program that adds", "start"),
        ("! what is all this", "start"),
        ("é quoi tout cela donc", "start"),
    ],
)
def test_cleaning(text: str, reason: str) -> None:
    assert unfit(text) == reason


def test_marks() -> None:
    text = few_shot_text(["one", "two"])
    assert text == f"1. {BEGIN}one{END}\n2. {BEGIN}two{END}\n3. {BEGIN}"
    assert parse_prompts(f" three{END}\n4. {BEGIN}four{END}\n5. {BEGIN}fi") == ["three", "four"]


def test_dedup() -> None:
    model = Model()
    fixed = iter(["k1 k2 k3 k4", "k1 k2 x3 k4", "k1 x2 k3 y4"] + [f"u{i} v{i} w{i} z{i}" for i in range(9)])
    model.write = lambda texts: [next(fixed) + END for _ in texts]
    out = run(model, n_prompts=3)
    assert out.prompts == ["k1 k2 k3 k4", "k1 x2 k3 y4", "u0 v0 w0 z0"]
    assert out.stats["rejected"] == {"duplicate": 1}


def test_bad_models() -> None:
    with pytest.raises(ValueError, match="80 are needed"):
        run(Model(), shots=80)
    for name, bad in (("sample", lambda p, n: [["x"]]), ("reward", lambda p, r: [[1.0]])):
        model = Model()
        setattr(model, name, bad)
        with pytest.raises(ValueError, match=f"{name}_fn"):
            run(model)
    model = Model()
    model.write = lambda texts: ["a b" + END] * len(texts)
    with pytest.raises(RuntimeError, match=r"1000 times in a row.*short"):
        run(model)


def test_a_frame_of_scored_prompts_is_not_sampled_again() -> None:
    model = Model()
    responses = model.sample(SEEDS, 6)
    human = pd.DataFrame({"prompt": SEEDS, "responses": responses, "rewards": model.reward(SEEDS, responses)})
    asked = []

    def sample(prompts: list[str], n: int) -> list[list[str]]:
        asked.append(len(prompts))
        return model.sample(prompts, n)

    out = self_rip(human, model.write, sample, model.reward, n_prompts=30, n_responses=6, filter=RIPFilter(0.3))
    assert asked == [30] and out.prompts == run(Model()).prompts and out.kept.equals(run(Model()).kept)


def test_without_filter_it_is_self_instruct() -> None:
    out = run(Model(), filter=RIPFilter(0))
    assert out.stats["n_pool"] == len(SEEDS) and len(out.kept) == 30


def test_rules_can_be_switched_off() -> None:
    model = Model()
    lines = ["k1 k2 k3 k4", "k1 k2 x3 k4", "k1 k2 k3 k4", "a b", "draw me a cat"]
    lines += [f"u{i} v{i} w{i} z{i}" for i in range(9)]
    fixed = iter(lines)
    model.write = lambda texts: [next(fixed) + END for _ in texts]
    out = run(model, n_prompts=4, dedup=False, clean=False)
    assert out.prompts == ["k1 k2 k3 k4", "k1 k2 x3 k4", "a b", "draw me a cat"]


def test_a_text_without_marks_is_a_prompt() -> None:
    assert parse_prompts(" how are you today ") == ["how are you today"]
    assert parse_prompts(f"{BEGIN}how are{END}") == ["how are"]
    assert parse_prompts("  ") == [] and parse_prompts(f"one\n10. {BEGIN}two") == []


def test_wrong_number_of_texts() -> None:
    model = Model()
    model.write = lambda texts: ["one two three four" + END] * (len(texts) + 1)
    with pytest.raises(ValueError, match="write_fn"):
        run(model)
    with pytest.raises(ValueError, match="at least 1"):
        run(Model(), n_prompts=0)
