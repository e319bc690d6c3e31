"""SpoofTest: what enters, what comes out, and that it holds its level and finds forgeries."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from icml25.spoof_detect import (
    CallableColors,
    HashColors,
    KGWColors,
    NgramReference,
    SpoofTest,
    context_only,
    correlation_test,
    fisher_difference,
    sorted_context,
    sorted_ngram,
)

VOCAB = 50


def text(n=400, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n)


def reference(order=2, n=3000, key_fn=None):
    return NgramReference.from_token_ids(text(n, seed=99), order, VOCAB, key_fn)


def green_where_seen(ref, share=0.9, key=4):
    """Colours that a forger's text has: green where the n-gram is in the corpus, else a coin."""
    coin = HashColors(key, ref.order - 1)
    luck = HashColors(key + 1, ref.order - 1, share)

    def colors(ids):
        x, valid = coin.colors(ids)
        grams = np.lib.stride_tricks.sliding_window_view(ids, ref.order)
        seen = np.zeros(len(ids), dtype=bool)
        seen[ref.order - 1 :] = ref.count(grams) > 0
        return np.where(seen, np.maximum(x, luck.colors(ids)[0]), x), valid

    return CallableColors(colors, ref.order - 1)


def test_sequences_by_hand():
    ref = NgramReference.from_token_ids([[1, 2, 1, 2], [2, 3]], 2, VOCAB)
    colors = CallableColors(lambda ids: ids / 10, 1)
    texts = [np.array([1, 2, 3, 1, 2]), np.array([7]), np.array([2, 3, 4])]
    x, y, doc = SpoofTest(colors, ref).sequences(texts)
    assert x.tolist() == [0.2, 0.3, 0.1, 0.4]  # (1,2) (2,3) (3,1), its repeat and that of (2,3) left out, (3,4)
    np.testing.assert_allclose(y, np.log1p([2, 1, 0, 0]))
    assert doc.tolist() == [0, 0, 0, 2]
    assert SpoofTest(colors, ref, score="presence").sequences(texts)[1].tolist() == [1, 1, 0, 0]
    ranked = SpoofTest(colors, ref, score="rank").sequences(texts)
    assert ranked[0].tolist() == [2, 3, 1, 4] and ranked[1].tolist() == [4, 3, 1.5, 1.5]


def test_positions_that_are_not_valid_do_not_enter():
    ref = reference()
    colors = CallableColors(lambda ids: (np.where(ids % 2, np.nan, ids), (ids % 2 == 0) & (np.arange(len(ids)) > 0)), 1)
    ids = text(100)
    x, y, _ = SpoofTest(colors, ref).sequences([ids])
    grams = np.unique(np.column_stack([ids[:-1], ids[1:]])[ids[1:] % 2 == 0], axis=0)
    assert len(x) == len(y) == len(grams)


@pytest.mark.parametrize("score", ["log_count", "presence", "rank"])
def test_standard_is_the_correlation_of_its_sequences(score):
    test = SpoofTest(HashColors(3, 1), reference(), score=score)
    x, y, _ = test.sequences([text()])
    result = test.standard([text()])
    of = stats.spearmanr if score == "rank" else stats.pearsonr
    assert result.statistic == pytest.approx(of(x, y).statistic)
    assert result.z == pytest.approx(result.statistic * math.sqrt(len(x) - 1))
    assert result.p_value == pytest.approx(stats.norm.sf(result.z))
    assert (result.n, result.n_texts, result.n_skipped, result.n_reference) == (len(x), 1, 0, 0)
    assert result.reference_statistic is None and result.method == "asymptotic"


def test_rank_score_is_spearmans_for_real_colours():
    ref, ids = reference(), text()
    colors = CallableColors(lambda ids: np.exp(HashColors(3, 1).colors(ids)[0] + 3 * np.sin(ids)), 1)
    plain = SpoofTest(colors, ref).sequences([ids])
    expected = stats.spearmanr(plain[0], plain[1]).statistic
    assert SpoofTest(colors, ref, score="rank").standard([ids]).statistic == pytest.approx(expected)


def test_result_describes_the_text():
    ref = reference()
    result = SpoofTest(green_where_seen(ref), ref, score="presence").standard([text()])
    x, y, _ = SpoofTest(green_where_seen(ref), ref, score="presence").sequences([text()])
    assert result.coverage == y.mean() and result.green_rate == x.mean()
    assert result.green_seen == x[y == 1].mean() > result.green_unseen + 0.2 and result.green_unseen == x[y == 0].mean()
    assert result.reject() and result.reject(1e-4) and "in the reference" in str(result)
    assert not SpoofTest(HashColors(1, 1), ref).standard([text()]).reject(1e-4)


@pytest.mark.parametrize("pool", ["concat", "stratified", "stouffer"])
def test_duplicated_texts_change_nothing(pool):
    test = SpoofTest(HashColors(3, 1), reference(), pool=pool)
    texts = [text(200, seed=s) for s in range(4)]
    once, twice = test.standard(texts), test.standard(texts + texts)
    assert (once.z, once.n) == (twice.z, twice.n)


@pytest.mark.parametrize("pool", ["concat", "stratified", "stouffer"])
def test_order_of_texts_changes_nothing(pool):
    texts = [text(150, seed=s) for s in range(4)]
    if pool != "concat":  # else an n-gram of two texts belongs to the first
        texts = [t // 4 + 12 * s for s, t in enumerate(texts)]
    test = SpoofTest(HashColors(3, 1), reference(), pool=pool)
    assert test.standard(texts).z == pytest.approx(test.standard(texts[::-1]).z)
    kept = ({tuple(v) for v in np.column_stack(test.sequences(t)[:2])} for t in (texts, texts[::-1]))
    assert next(kept) == next(kept)


def test_pools_guard_against_texts_that_differ_in_colour_and_topic():
    ref = NgramReference.from_token_ids(
        [np.repeat(np.arange(25), 30)[np.random.default_rng(0).permutation(750)]], 2, VOCAB
    )
    texts = [text(600, seed=1) // 2, 25 + text(600, seed=2) // 2]  # only the first is of the corpus' topic

    def greener(ids):  # and only the first is watermarked strongly
        return np.maximum(HashColors(3, 1, 0.5).colors(ids)[0], (ids < 25) * HashColors(5, 1, 0.5).colors(ids)[0])

    tests = {p: SpoofTest(CallableColors(greener, 1), ref, pool=p) for p in ("concat", "stratified", "stouffer")}
    z = {p: t.standard(texts).z for p, t in tests.items()}
    assert z["concat"] > 3 and abs(z["stratified"]) < 2 and abs(z["stouffer"]) < 2
    assert tests["concat"].standard(texts, method="permutation").p_value > 0.05  # permutes within texts
    x, y, doc = tests["stratified"].sequences(texts)
    assert z["stratified"] == pytest.approx(correlation_test(x, y, doc).z)
    assert z["stouffer"] == pytest.approx(correlation_test(x, y, doc, pool="stouffer").z)


def test_permutation_agrees_with_the_normal_approximation_and_is_reproducible():
    test = SpoofTest(HashColors(3, 1), reference())
    exact = test.standard([text()], method="permutation", seed=1)
    assert exact.p_value == pytest.approx(test.standard([text()]).p_value, abs=0.02)
    assert exact == test.standard([text()], method="permutation", seed=1)
    assert exact.method == "permutation" and test.standard([text(40)]).method == "permutation"


def test_reprompting_by_hand():
    ref = reference()
    test = SpoofTest(green_where_seen(ref), ref)
    suspects, again = [text(300, seed=1), text(300, seed=2)], [text(250, seed=3), text(250, seed=4)]
    result = test.reprompting(suspects, reprompted=again)
    first, second = test.standard(suspects), test.standard(again)
    assert result.statistic == first.statistic and result.reference_statistic == pytest.approx(second.statistic)
    assert (result.n, result.n_reference) == (first.n, second.n)
    assert result.z == pytest.approx(fisher_difference(first.statistic, first.n, second.statistic, second.n))
    assert result.p_value == pytest.approx(stats.norm.sf(result.z)) and "regenerated" in str(result)


def test_reprompting_asks_for_the_rest_of_every_text():
    asked = []

    def generate(prompts, n_new):
        asked.append((prompts, n_new))
        return [text(n, seed=50 + len(asked)) for n in n_new]

    test, suspects = SpoofTest(HashColors(3, 1), reference()), [text(300, seed=1), text(200, seed=2)]
    result = test.reprompting(suspects, generate=generate, prompt_tokens=20)
    assert asked[0][1] == [280, 180]
    for prompt, suspect in zip(asked[0][0], suspects, strict=True):
        np.testing.assert_array_equal(prompt, suspect[:20])
    same = test.reprompting(suspects, reprompted=[text(280, seed=51), text(180, seed=51)])
    assert result == same  # prompts enter S, and never S'


def test_several_regenerations_are_averaged():
    calls = iter(range(100))
    batches = [[text(280, seed=60)], [text(280, seed=61)], [text(280, seed=62)]]
    test = SpoofTest(HashColors(3, 1), reference())
    result = test.reprompting([text(300)], generate=lambda *_: batches[next(calls)], n_reprompts=3)
    found = [test.standard(b) for b in batches]
    w = np.array([f.n - 3 for f in found])
    mean = w @ np.arctanh([f.statistic for f in found]) / w.sum()
    assert math.atanh(result.reference_statistic) == pytest.approx(mean)
    assert result.n_reference == sum(f.n for f in found)
    own = test.standard([text(300)])
    assert result.z == pytest.approx((math.atanh(own.statistic) - mean) / math.sqrt(1 / (own.n - 3) + 1 / w.sum()))


def test_regenerations_must_differ():
    test, batches = SpoofTest(HashColors(3, 1), reference()), iter([60, 61, 60])

    def generate(prompts, n_new):
        return [text(n, seed=next(batches)) for n in n_new]

    with pytest.raises(ValueError, match="generate returned the same texts twice; expected independent samples"):
        test.reprompting([text(300)], generate=generate, n_reprompts=3)
    once = test.reprompting([text(300)], generate=lambda p, n: [text(n[0], seed=60)], n_reprompts=1)
    assert once.status == "ok"


@pytest.mark.parametrize("before", [text(0), text(1)], ids=["prompt", "BOS + prompt"])
def test_prompts_must_be_cut_off(before):
    def continued(prompts, n_new, with_prompt):
        new = [text(n, seed=70 + i) for i, n in enumerate(n_new)]
        return [
            np.r_[before, p, t] if i in with_prompt else t for i, (p, t) in enumerate(zip(prompts, new, strict=True))
        ]

    test, suspects = SpoofTest(HashColors(3, 1), reference()), [text(300 - 50 * s, seed=s) for s in range(3)]
    for with_prompt in ({0}, {2}, {0, 1}, {0, 1, 2}):
        message = f"text {min(with_prompt)} begins with a prompt; .* cut the prompts off"
        with pytest.raises(ValueError, match=f"generate returned: {message}"):
            test.reprompting(suspects, generate=lambda p, n, which=with_prompt: continued(p, n, which))
        again = continued([s[:32] for s in suspects], [200] * 3, with_prompt)
        with pytest.raises(ValueError, match=f"reprompted: {message}"):
            test.reprompting(suspects, reprompted=again)
    with pytest.raises(ValueError, match="reprompted: text 1 begins with a prompt"):  # whatever their order and number
        test.reprompting(suspects, reprompted=[text(300, seed=80), np.r_[before, suspects[2]]])


def test_a_short_prompt_may_come_again_by_chance():
    def whole(prompts, n_new):
        return [np.r_[p, text(n, seed=70)] for p, n in zip(prompts, n_new, strict=True)]

    def but_one(prompts, n_new):
        return [*whole(prompts, n_new)[:-1], text(n_new[-1], seed=71)]

    test, suspects = SpoofTest(HashColors(3, 1), reference()), [text(200, seed=s) for s in range(4)]
    assert test.reprompting(suspects[:1], generate=whole, prompt_tokens=2).status == "ok"
    assert test.reprompting(suspects, generate=but_one, prompt_tokens=7).status == "ok"
    for prompt_tokens in (2, 7):  # but not all of them at once
        with pytest.raises(ValueError, match="text 0 begins with a prompt"):
            test.reprompting(suspects, generate=whole, prompt_tokens=prompt_tokens)
    with pytest.raises(ValueError, match="text 0 begins with a prompt"):
        test.reprompting(suspects, generate=but_one, prompt_tokens=8)


def test_few_ngrams_give_reprompting_no_verdict():
    test = SpoofTest(HashColors(3, 1), reference())
    distinct = np.random.default_rng(0).permutation(VOCAB)
    short, enough = distinct[:20], distinct[:21]  # 19 and 20 pairs
    for suspect, again in ((short, text()), (text(), short)):
        with pytest.warns(RuntimeWarning, match="too few to test; expected at least 20 of both"):
            result = test.reprompting([suspect], reprompted=[again])
        assert (result.status, result.p_value) == ("too_short", 1.0)
    assert test.reprompting([enough], reprompted=[enough[::-1]]).status == "ok"


@pytest.mark.parametrize("pool", ["concat", "stratified", "stouffer"])
def test_level_and_power(pool):
    ref = reference(n=1200)
    p = {"genuine": [], "forged": [], "genuine again": [], "forged again": []}
    for key in range(200):
        texts = [text(150, seed=2 * key), text(150, seed=2 * key + 1)]
        again = [text(150, seed=1000 + 2 * key), text(150, seed=1001 + 2 * key)]
        honest = SpoofTest(HashColors(key, 1), ref, pool=pool)
        forged = SpoofTest(green_where_seen(ref, key=key), ref, pool=pool)
        p["genuine"].append(honest.standard(texts).p_value)
        p["forged"].append(forged.standard(texts).p_value)
        p["genuine again"].append(honest.reprompting(texts, reprompted=again).p_value)
        z = honest.standard(again)
        two = forged.standard(texts)
        p["forged again"].append(stats.norm.sf(fisher_difference(two.statistic, two.n, z.statistic, z.n)))
    rejected = {name: np.mean(np.array(values) <= 0.05) for name, values in p.items()}
    assert rejected["genuine"] <= 0.1 and rejected["genuine again"] <= 0.1
    assert rejected["forged"] >= 0.95 and rejected["forged again"] >= 0.9
    assert 0.4 <= np.mean(p["genuine"]) <= 0.6 and 0.4 <= np.mean(p["genuine again"]) <= 0.6


def test_one_sided():
    ref = reference()
    red = green_where_seen(ref)
    opposite = CallableColors(lambda ids: (1 - red.colors(ids)[0], red.colors(ids)[1]), 1)
    result = SpoofTest(opposite, ref).standard([text()])
    assert result.z < -5 and result.p_value > 0.999


def test_watermarked_reference_rejects_genuine_text():
    """The pitfall in the documentation: R must not carry the watermark."""
    rng = np.random.default_rng(0)
    colors = HashColors(3, 1)
    green = np.array([[colors.colors([a, b])[0][1] for b in range(VOCAB)] for a in range(VOCAB)])

    def write(n, strength):
        ids = [0]
        for _ in range(n):
            p = 1 + strength * green[ids[-1]]
            ids.append(int(rng.choice(VOCAB, p=p / p.sum())))
        return np.array(ids)

    genuine = write(2000, 3)
    plain, marked = (NgramReference.from_token_ids(write(3000, s), 2, VOCAB) for s in (0, 3))
    assert not SpoofTest(colors, plain).standard([genuine]).reject()
    assert SpoofTest(colors, marked).standard([genuine]).reject(1e-6)


def test_key_function():
    ref = reference(order=3, key_fn=sorted_context)
    test = SpoofTest(HashColors(1, 2), ref)
    x, _, _ = test.sequences([np.array([1, 2, 3, 2, 1, 3])])  # (1,2|3) and (2,1|3) are one key
    assert len(x) == 3 and test.key_fn is sorted_context
    assert SpoofTest(HashColors(1, 2), ref, key_fn=sorted_context).key_fn is sorted_context
    with pytest.raises(ValueError, match="key_fn is 'context_only', but the reference counts by 'sorted_context'"):
        SpoofTest(HashColors(1, 2), ref, key_fn=context_only)
    with pytest.raises(ValueError, match="key_fn is 'context_only', but the reference counts by ''"):
        SpoofTest(HashColors(1, 2), reference(order=3), key_fn=context_only)


class Orderless(HashColors):
    ignores_order = True


def test_colours_that_ignore_order_need_a_key_that_does():
    def sum_of_context(grams):
        return np.stack([grams[:, -1], grams[:, :-1].sum(axis=1)], axis=1)

    for key_fn in (sorted_context, sorted_ngram, sum_of_context):
        SpoofTest(Orderless(1, 2), reference(order=3, key_fn=key_fn))
    for key_fn, name in ((None, ""), (context_only, "context_only"), (lambda g: g[:, 1:], "<lambda>")):
        with pytest.raises(ValueError, match=f"counts by key_fn '{name}', .*; expected .*key_fn=sorted_context"):
            SpoofTest(Orderless(1, 2), reference(order=3, key_fn=key_fn))


def test_selfhash_needs_a_key_that_ignores_order():
    pytest.importorskip("transformers")
    for width in (1, 2, 3, 4):
        colors = KGWColors({"seeding_scheme": "selfhash", "context_width": width}, VOCAB)
        assert colors.ignores_order == (width > 2)  # a context of one token has no order
        if colors.ignores_order:
            with pytest.raises(ValueError, match=r"expected .*key_fn=sorted_context"):
                SpoofTest(colors, reference(order=width))
        key_fn = sorted_context if colors.ignores_order else None
        if width > 1:
            assert SpoofTest(colors, reference(order=width, key_fn=key_fn)).standard([text()]).status == "ok"
    assert not KGWColors({"context_width": 4}, VOCAB).ignores_order


def test_another_function_of_the_same_name_is_another():
    ref = reference(key_fn=lambda g: g[:, :1])
    with pytest.raises(ValueError, match="the reference counts by another function called '<lambda>'"):
        SpoofTest(HashColors(1, 1), ref, key_fn=lambda g: g)
    assert SpoofTest(HashColors(1, 1), ref, key_fn=ref.key_fn).key_fn is ref.key_fn


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda g: np.zeros(len(g) + 1), r"returned float64 \(\d+,\); expected \(\d+,\) numbers"),
        (lambda g: [[0]] * len(g), r"returned int64 \(\d+, 1\)"),
        (lambda g: np.where(np.arange(len(g)) == 3, np.nan, 1.0), "returned nan; expected finite counts >= 0"),
        (lambda g: np.arange(len(g)) - 1, "returned -1"),
        (lambda g: None, "returned object"),
    ],
    ids=range(5),
)
def test_bad_counts(answer, message):
    class Index:
        order = 2

        def count(self, ngrams):
            return answer(ngrams)

    with pytest.raises(ValueError, match=f"reference.count {message}"):
        SpoofTest(HashColors(3, 1), Index()).standard([text()])


def test_any_source_of_counts_will_do():
    class Index:
        order = 2

        def count(self, ngrams):
            return ref.count(ngrams)

    ref = reference()
    assert SpoofTest(HashColors(3, 1), Index()).standard([text()]) == SpoofTest(HashColors(3, 1), ref).standard(
        [text()]
    )


def test_lists_and_tensors_and_narrow_integers_are_texts():
    torch = pytest.importorskip("torch")
    test, ids = SpoofTest(HashColors(3, 1), reference()), text()
    expected = test.standard([ids])
    for same in (ids.tolist(), torch.tensor(ids), ids.astype(np.uint16), ids.astype(np.int32)):
        assert test.standard([same]) == expected
    assert test.standard(iter([ids])) == expected == test.standard(ids[None])


@pytest.mark.parametrize("texts", [[], [[]], [[1], [2, 3]], [[1, 2, 3]], [[1, 2, 1, 2, 1, 2]]])
def test_too_little_text_gives_no_verdict(texts):
    test = SpoofTest(HashColors(3, 1), reference())
    with pytest.warns(RuntimeWarning, match="distinct n-grams are too few"):
        result = test.standard(texts)
    assert (result.status, result.p_value) == ("too_short", 1.0) and math.isnan(result.z) and not result.reject(0.5)
    assert result.n_skipped == sum(len(t) < 3 for t in texts) and "no verdict" in str(result)
    with pytest.warns(RuntimeWarning, match="too few"):
        assert test.reprompting(texts, reprompted=[text()]).status == "too_short"
    with pytest.warns(RuntimeWarning, match="regenerated ones are too few"):
        assert test.reprompting([text()], reprompted=texts).p_value == 1


def test_nothing_to_prompt():
    with pytest.warns(RuntimeWarning, match="too few"):
        assert SpoofTest(HashColors(3, 1), reference()).reprompting([], generate=lambda *_: 1 / 0).status == "too_short"


@pytest.mark.parametrize("pool", ["concat", "stratified", "stouffer"])
def test_constant_sequences_give_no_verdict(pool):
    all_green = CallableColors(lambda ids: np.ones(len(ids)), 1)
    elsewhere = NgramReference.from_token_ids([[48, 49]], 2, VOCAB)
    for colors, ref, what in ((all_green, reference(), "colour"), (HashColors(1, 1), elsewhere, "context score")):
        test = SpoofTest(colors, ref, pool=pool)
        with pytest.warns(RuntimeWarning, match=f"the {what} is constant"):
            result = test.standard([text() % 40])
        assert result.status == "degenerate" and result.p_value == 1 and math.isnan(result.statistic)
    mixed = CallableColors(lambda ids: np.where(ids[-1] == 3, 1.0, HashColors(1, 1).colors(ids)[0]), 1)
    with pytest.warns(RuntimeWarning, match="of the regenerated texts is constant"):
        result = SpoofTest(mixed, reference(), pool=pool).reprompting(
            [np.r_[text(), 4]], reprompted=[np.r_[text(seed=1), 3]]
        )
    assert result.status == "degenerate" and result.p_value == 1 and not math.isnan(result.statistic)


@pytest.mark.parametrize("method", ["auto", "asymptotic", "permutation"])
def test_stouffer_needs_a_text_of_four_ngrams(method):
    test = SpoofTest(HashColors(3, 1), reference(), pool="stouffer")
    short = np.random.default_rng(0).permutation(VOCAB)[:48].reshape(12, 4)  # three distinct pairs each
    with pytest.warns(
        RuntimeWarning, match="36 distinct n-grams are too few to test; expected at least 4, in one text"
    ):
        result = test.standard(short, method=method)
    assert (result.status, result.p_value, result.n) == ("too_short", 1.0, 36)
    assert test.standard([*short, text(200)], method=method).status == "ok"
    with pytest.warns(RuntimeWarning, match="too few"):
        assert test.reprompting(short, reprompted=[text()]).p_value == 1


def test_as_many_texts_as_ngrams():
    test = SpoofTest(HashColors(3, 1), reference(), pool="stratified")
    texts = [[2 * i, 2 * i + 1, 2 * i] for i in range(5)]
    with pytest.warns(RuntimeWarning, match="too few|constant"):
        assert test.reprompting(texts, reprompted=[text()]).p_value == 1


def test_good_input_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SpoofTest(HashColors(3, 1), reference()).standard([text(), [1], []])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SpoofTest(HashColors(1, 2), reference()), ValueError, "order 2 and colors context_width 2"),
        (lambda: SpoofTest(HashColors(1, 1), NgramReference(2)), ValueError, "reference is empty"),
        (lambda: SpoofTest(CallableColors(len, 1, 40), reference()), ValueError, "vocab_size 40 and reference 50"),
        (
            lambda: SpoofTest(HashColors(1, 1), reference(), score="tfidf"),
            ValueError,
            "score is 'tfidf'; expected one of 'log_count'",
        ),
        (
            lambda: SpoofTest(HashColors(1, 1), reference(), pool="mean"),
            ValueError,
            "pool is 'mean'; expected one of 'concat'",
        ),
        (lambda: SpoofTest(3, reference()), TypeError, "colors is a int"),
        (lambda: SpoofTest(HashColors(1, 1), {}), TypeError, "reference is a dict"),
    ],
    ids=range(7),
)
def test_bad_construction(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([text(), [1, -2, 3]], ValueError, r"texts\[1\] has id -2 at position 1"),
        ([[1, 2, 50]], ValueError, r"texts\[0\] has id 50 at position 2; expected 0 <= id < 50"),
        ([[1.0, 2.0]], TypeError, r"texts\[0\] has dtype float64, such as .* at position 0"),
        (["abc"], ValueError, r"texts\[0\] has shape \(\)"),
        (text(), ValueError, r"texts\[0\] has shape \(\); .* one text alone goes in a list"),
        ([text()[None]], ValueError, r"texts\[0\] has shape \(1, 400\)"),
    ],
)
def test_bad_texts(texts, error, message):
    test = SpoofTest(HashColors(1, 1), reference())
    for call in (test.standard, test.sequences, lambda t: test.reprompting(t, reprompted=[text()])):
        with pytest.raises(error, match=message):
            call(texts)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda ids: np.where(np.arange(len(ids)) == 7, np.nan, 1.0), r"colors of texts\[0\] are nan at position 7"),
        (lambda ids: np.full(len(ids), np.inf), r"are inf at position 1"),
        (lambda ids: np.ones(3), r"have shape \(3,\)"),
        (lambda ids: (np.ones(len(ids)), np.ones(len(ids))), r"valid \(400,\) float64; expected .* bool"),
        (
            lambda ids: (np.ones(len(ids)), np.ones(len(ids), bool)),
            r"valid at position 0; expected context_width tokens",
        ),
    ],
    ids=range(5),
)
def test_bad_colours(fn, message):
    with pytest.raises(ValueError, match=message):
        SpoofTest(CallableColors(fn, 1), reference()).standard([text()])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "exactly one of generate and reprompted"),
        ({"generate": len, "reprompted": []}, ValueError, "exactly one"),
        ({"generate": lambda p, n: [text()]}, ValueError, "generate returned 1 texts; expected 2"),
        ({"generate": lambda p, n: [text(), []]}, ValueError, "generate returned an empty text at position 1"),
        ({"generate": lambda p, n: [text(), text() * 1.0]}, TypeError, r"reprompted\[1\] has dtype float64"),
        (
            {"generate": len, "prompt_tokens": 80},
            ValueError,
            r"prompt_tokens is 80; expected fewer than texts\[1\] has, 80",
        ),
        ({"generate": len, "prompt_tokens": 0}, ValueError, "prompt_tokens is 0"),
        ({"generate": len, "n_reprompts": 0.5}, ValueError, "n_reprompts is 0.5"),
        ({"reprompted": [[1, 2, 99]]}, ValueError, r"reprompted\[0\] has id 99"),
    ],
    ids=range(9),
)
def test_bad_reprompting(arguments, error, message):
    with pytest.raises(error, match=message):
        SpoofTest(HashColors(1, 1), reference()).reprompting([text(), text(80)], **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"reprompted": 5}, TypeError, "reprompted is 5; expected a list of texts"),
        ({"generate": "abc"}, TypeError, "generate is 'abc'; expected a function"),
        ({"generate": lambda p, n: None}, TypeError, "what generate returned is None"),
        ({"generate": lambda p, n: [None]}, TypeError, "dtype object|shape"),
        ({"generate": lambda p, n: [5]}, ValueError, r"reprompted\[0\] has shape \(\)"),
    ],
    ids=range(5),
)
def test_bad_types_of_reprompting(arguments, error, message):
    with pytest.raises((error, ValueError), match=message):
        SpoofTest(HashColors(1, 1), reference()).reprompting([text()], **arguments)


def test_ragged_text_is_named():
    test = SpoofTest(HashColors(1, 1), reference())
    with pytest.raises(ValueError, match=r"texts\[0\] is no array"):
        test.standard([[[1, 2], [3]]])
    with pytest.raises(ValueError, match=r"reprompted\[1\] is no array"):
        test.reprompting([text()], reprompted=[text(), [[1, 2], [3]]])
    assert test.standard([text(), text(80).tolist()]).n_texts == 2  # texts of different lengths are what is asked for


@pytest.mark.parametrize("texts", [None, 5, "abc"])
def test_bad_types_of_texts(texts):
    with pytest.raises(TypeError, match=f"texts is {texts!r}; expected a list of texts"):
        SpoofTest(HashColors(1, 1), reference()).standard(texts)


def test_alpha_is_included():
    result = SpoofTest(HashColors(1, 1), reference()).standard([text()])
    assert result.reject(result.p_value) and not result.reject(math.nextafter(result.p_value, 0))


def test_alpha_of_another_type():
    with pytest.raises(TypeError, match="alpha is 'a'; expected a real number"):
        SpoofTest(HashColors(1, 1), reference()).standard([text()]).reject("a")


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 2, math.nan])
def test_bad_alpha(alpha):
    with pytest.raises(ValueError, match="alpha is"):
        SpoofTest(HashColors(1, 1), reference()).standard([text()]).reject(alpha)


def test_bad_method():
    with pytest.raises(ValueError, match="method is 'exact'; expected one of 'auto', 'asymptotic', 'permutation'"):
        SpoofTest(HashColors(1, 1), reference()).standard([text()], method="exact")
    with pytest.raises(ValueError, match="n_permutations is 0"):
        SpoofTest(HashColors(1, 1), reference()).standard([text()], n_permutations=0)


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda ids: ids * 1j, TypeError, r"colors of texts\[0\] have dtype complex128; expected real numbers"),
        (lambda ids: np.full(len(ids), "red"), TypeError, r"colors of texts\[0\] have dtype <U3"),
        (lambda ids: (ids, ids, ids), TypeError, r"colors of texts\[0\] are a tuple; expected two arrays"),
        (lambda ids: ([[1], [1, 2]], ids > 0), ValueError, r"colors of texts\[0\] is no array"),
    ],
)
def test_colours_that_are_no_numbers(made, error, message):
    test = SpoofTest(CallableColors(made, 1), NgramReference.from_token_ids([[1, 2, 3]], 2))
    with pytest.raises(error, match=message):
        test.standard([np.arange(9)])
