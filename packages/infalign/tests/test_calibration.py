"""Empirical calibrated reward: ranks, invariance, uniformity, missing and repeated prompts, files."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from icml25.infalign import Calibrator, FewRolloutsWarning, RepeatedPromptWarning, prompt_key

RNG = np.random.default_rng(0)
ROLLOUTS = RNG.integers(-5, 6, (4, 30)).astype(float)
KEYS = ["a", "b", "c", "d"]
CHAT = [{"role": "user", "content": "Grüße?"}]
few_ok = pytest.mark.filterwarnings("ignore::icml25.infalign.FewRolloutsWarning")


def slow(z, r):
    """The definition."""
    return ((r > z) + 0.5 * (r == z)).mean()


@few_ok
@given(st.data())
def test_definition_on_ragged_rollouts(data):
    numbers = st.integers(-3, 3).map(float)
    rows = data.draw(st.lists(st.lists(numbers, min_size=1, max_size=9), min_size=1, max_size=5))
    keys = [f"prompt {i}" for i in range(len(rows))]
    calibrator = Calibrator.fit(keys, rows)
    asked = data.draw(st.lists(st.tuples(st.sampled_from(range(len(rows))), numbers), min_size=1, max_size=20))
    found = calibrator.calibrate([keys[i] for i, _ in asked], [r for _, r in asked])
    np.testing.assert_allclose(found, [slow(np.array(rows[i]), r) for i, r in asked], atol=1e-15)


def test_below_above_and_equal():
    calibrator = Calibrator.fit(["x"], np.full((1, 10), 2.0))
    np.testing.assert_array_equal(calibrator.calibrate(["x"] * 3, [1.0, 2.0, 3.0]), [0, 0.5, 1])


@given(arrays(np.float64, 12, elements=st.integers(-20, 20).map(float)))
def test_only_the_order_matters(r):
    keys = (KEYS * 3)[:12]
    plain = Calibrator.fit(KEYS, ROLLOUTS).calibrate(keys, r)
    for change in (lambda x: np.exp(x / 4), lambda x: x**3, lambda x: 2 * x - 7):
        np.testing.assert_array_equal(Calibrator.fit(KEYS, change(ROLLOUTS)).calibrate(keys, change(r)), plain)
    np.testing.assert_array_equal(Calibrator.fit(KEYS, RNG.permuted(ROLLOUTS, axis=1)).calibrate(keys, r), plain)


def test_the_rollouts_themselves_have_mean_one_half():
    for z in (ROLLOUTS, RNG.normal(size=(4, 30))):
        calibrator = Calibrator.fit(KEYS, z)
        for key, row in zip(KEYS, z, strict=True):
            assert calibrator.calibrate([key] * 30, row).mean() == pytest.approx(0.5, abs=1e-15)


def test_uniform_for_every_prompt_whatever_the_reward():
    rng = np.random.default_rng(1)
    scales, shifts = np.exp(rng.normal(size=20)), 10 * rng.normal(size=20)
    draws = [rng.normal, rng.exponential]
    table = np.stack(
        [shift + s * draws[i % 2](size=4000) for i, (s, shift) in enumerate(zip(scales, shifts, strict=True))]
    )
    keys = [str(i) for i in range(20)]
    calibrator = Calibrator.fit(keys, table[:, :3000])
    p = [
        stats.kstest(calibrator.calibrate([k] * 1000, row[3000:]), "uniform").pvalue
        for k, row in zip(keys, table, strict=True)
    ]
    assert min(p) > 0.05 / 20 / 5
    pooled = Calibrator.fit(["all"], table[:, :3000].reshape(1, -1))  # the global quantile is not calibrated
    p = [stats.kstest(pooled.calibrate(["all"] * 1000, row[3000:]), "uniform").pvalue for row in table]
    assert np.median(p) < 1e-6


def test_error_of_K_rollouts():
    u, errors = (np.arange(1000) + 0.5) / 1000, {}
    for K in (100, 1000):
        table = np.random.default_rng(2).random((200, K))
        calibrator = Calibrator.fit([str(i) for i in range(200)], table)
        C = np.stack([calibrator.calibrate([str(i)] * 1000, u) for i in range(200)])
        errors[K] = np.abs(C - u).max(1).mean()
    assert errors[100] == pytest.approx(0.083, abs=0.006) and errors[1000] == pytest.approx(0.027, abs=0.003)


def test_chat_prompts():
    calibrator = Calibrator.fit([CHAT, "text"], RNG.normal(size=(2, 10)))
    other_order = [{"content": "Grüße?", "role": "user", "name": None}]
    assert prompt_key(CHAT) == prompt_key(other_order) != prompt_key([{"role": "user", "content": "Gruße?"}])
    np.testing.assert_array_equal(calibrator.calibrate([CHAT], [0.3]), calibrator.calibrate([other_order], [0.3]))
    assert calibrator.keys[1] == "text" and len(calibrator) == 2 and "2 prompts, 20 rollouts" in repr(calibrator)
    with pytest.raises(TypeError, match=r"a text or a list of chat messages, got int|Type-check"):
        prompt_key(3)


def test_missing_prompts():
    calibrator = Calibrator.fit(KEYS, ROLLOUTS)
    with pytest.raises(KeyError, match=r"no rollouts of the prompt 'e' \(1 of 2 are unknown\)"):
        calibrator.calibrate(["a", "e"], [0.0, 0.0])
    with pytest.raises(KeyError, match="'e'"):
        calibrator.rollouts("e")
    np.testing.assert_array_equal(calibrator.rollouts("c"), np.sort(ROLLOUTS[2]))
    pooled = Calibrator.fit(KEYS, ROLLOUTS, on_missing="global").calibrate(["a", "e"], [1.0, 1.0])
    np.testing.assert_allclose(pooled, [slow(ROLLOUTS[0], 1.0), slow(ROLLOUTS, 1.0)], atol=1e-15)
    with pytest.raises((ValueError, TypeError), match="on_missing"):
        Calibrator.fit(KEYS, ROLLOUTS, on_missing="pooled")


def test_repeated_prompts_are_merged():
    with pytest.warns(RepeatedPromptWarning, match="2 of 4 prompts came before"):
        merged = Calibrator.fit(["a", "b", "a", "a"], ROLLOUTS)
    assert merged.keys == ["a", "b"]
    np.testing.assert_array_equal(merged.rollouts("a"), np.sort(ROLLOUTS[[0, 2, 3]].ravel()))
    np.testing.assert_array_equal(merged.rollouts("b"), np.sort(ROLLOUTS[1]))


def test_update_equals_one_fit():
    calibrator = Calibrator.fit(KEYS[:3], ROLLOUTS[:3]).update(["c", "d"], [ROLLOUTS[2, :7], ROLLOUTS[3]])
    expected = Calibrator.fit(KEYS, [*ROLLOUTS[:2], np.r_[ROLLOUTS[2], ROLLOUTS[2, :7]], ROLLOUTS[3]])
    assert calibrator.keys == KEYS
    for key in KEYS:
        np.testing.assert_array_equal(calibrator.rollouts(key), expected.rollouts(key))
    pooled = Calibrator.fit(["a"], ROLLOUTS[:1], on_missing="global")
    before = pooled.calibrate(["?"], [0.0])
    assert pooled.update(["b"], [np.full(60, 9.0)]).calibrate(["?"], [0.0]) < before


def test_transform_is_calibrate():
    calibrator = Calibrator.fit(KEYS, ROLLOUTS)
    np.testing.assert_array_equal(calibrator.transform(KEYS, np.zeros(4)), calibrator.calibrate(KEYS, np.zeros(4)))
    assert calibrator.calibrate([], []).shape == (0,)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_files(tmp_path, mmap, dtype):
    keys = ["", "Grüße\n\x00", CHAT, "d" * 5000]
    calibrator = Calibrator.fit(keys, [ROLLOUTS[0], *ROLLOUTS[1:]], dtype=dtype, on_missing="global")
    calibrator.save(tmp_path / "table.npz")
    loaded = Calibrator.load(tmp_path / "table.npz", mmap=mmap)
    assert loaded.keys == calibrator.keys and loaded.on_missing == "global"
    for key in keys:
        np.testing.assert_array_equal(loaded.rollouts(key), calibrator.rollouts(key))
        assert loaded.rollouts(key).dtype == dtype
    asked, r = [*keys, "new"], [0.0, 1.0, -2.0, 3.0, 0.5]
    np.testing.assert_array_equal(loaded.calibrate(asked, r), calibrator.calibrate(asked, r))
    assert isinstance(loaded._rewards, np.memmap) == mmap


def test_mmap_refuses_a_compressed_file(tmp_path):
    Calibrator.fit(KEYS, ROLLOUTS).save(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "b.npz", **np.load(tmp_path / "a.npz"))
    with pytest.raises(ValueError, match="compressed"):
        Calibrator.load(tmp_path / "b.npz", mmap=True)


def test_float32_ranks_the_same_where_it_makes_no_ties():
    z, r = RNG.permutation(400).reshape(4, 100) + 0.1, RNG.permutation(400)[:4] + 0.35
    single, double = (Calibrator.fit(KEYS, z, dtype=t) for t in (np.float32, np.float64))
    np.testing.assert_array_equal(single.calibrate(KEYS, r), double.calibrate(KEYS, r))
    same = Calibrator.fit(["a"], np.full((1, 10), 0.1), dtype=np.float32)  # 0.1 is not the same number in both
    assert same.calibrate(["a"], [0.1])[0] == 0.5


@pytest.mark.parametrize(
    ("keys", "rewards", "message"),
    [
        (["a", "b"], [[1.0] * 10, [1.0] * 9 + [np.nan]], r"prompt 1 \('b'\) have nan"),
        (["a"], [[np.inf] * 10], r"prompt 0 \('a'\) have inf"),
        (["a", "b"], [[1.0] * 10, []], r"prompt 1 \('b'\) has no rollouts"),
        (["a"], [[1.0], [2.0]], "1 keys but 2 rows"),
        ([], [], "keys is empty"),
        (["a"], [[[1.0]]], "sequence of numbers for each prompt"),
    ],
)
def test_bad_rollouts(keys, rewards, message):
    for call in (Calibrator.fit, Calibrator.fit(KEYS, ROLLOUTS).update):
        with pytest.raises(ValueError, match=message):
            call(keys, rewards)


def test_bad_arguments():
    with pytest.raises(ValueError, match="ragged_ok is False"):
        Calibrator.fit(["a", "b"], [[1.0] * 10, [1.0] * 11], ragged_ok=False)
    with pytest.raises(ValueError, match="float64 or float32"):
        Calibrator.fit(["a"], [[1.0] * 10], dtype=np.float16)
    calibrator = Calibrator.fit(KEYS, ROLLOUTS)
    with pytest.raises(ValueError, match=r"rewards\[1\] is nan \(prompt 'b'\)"):
        calibrator.calibrate(["a", "b"], [0.0, np.nan])
    with pytest.raises(ValueError, match="one for each of the keys"):
        calibrator.calibrate(["a", "b"], [0.0])
    with pytest.raises(ValueError, match="one for each of the keys"):
        calibrator.calibrate(["a"], [[0.0]])


def test_few_rollouts():
    with pytest.warns(FewRolloutsWarning, match=r"1 of 2 prompts have fewer than 10 rollouts \(the fewest: 9\)"):
        calibrator = Calibrator.fit(["a", "b"], [[1.0] * 9, [1.0] * 10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator.update(["a"], [[1.0]])
