"""Writes a tiny Llama with random weights and a tokenizer trained on the spot. Nothing is downloaded.

usage: python -m demo.tiny_model FOLDER        (in an environment with torch, transformers and tokenizers)

The weights are random, but not too small, and queries and keys are made twice as large again: attention that picks out
single tokens makes the greedy answer depend on every layer and every block of the cache, so that a block that is
missing, zeroed or foreign changes the text. (With flat attention, long prompts all end in the same endless repetition.)
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# Four layers, two heads for keys and values of 32 each (the smallest head that vLLM's CPU attention takes).
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
}
SHARPER = 2.0
VOCABULARY = 1024
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ROLES = ("<system>", "<user>", "<assistant>", "<end>")
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SUBJECTS = "a tide,the moon,one ship,the harbour,a lamp,the crew,some gulls,the pilot,an anchor,the chart".split(",")
VERBS = "carries,follows,waits for,finds,turns from,measures,remembers,leaves,counts,greets".split(",")
ENDINGS = "at dawn,by night,in the fog,before noon,without a word,once more,under sail,along the coast".split(",")
MARKER = "complete.json"


def sentences(seed: int, count: int) -> Iterator[str]:
    """Text for the tokenizer, and for the demo's prompts: plain, endless, the same for the same seed."""
    dice = random.Random(seed)
    for _ in range(count):
        number = dice.randrange(1000)
        subject, other = dice.choice(SUBJECTS), dice.choice(SUBJECTS)
        yield f"{subject.capitalize()} {dice.choice(VERBS)} {other} {dice.choice(ENDINGS)} ({number})."


def write_tokenizer(folder: Path, seed: int) -> dict[str, int]:
    """Byte-level BPE, so that every text has tokens; returns what the model's configuration needs of it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL.values(), *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(seed, 5000), trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    wrapped.model_max_length = SHAPE["max_position_embeddings"]
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    return {
        "vocab_size": -(-len(wrapped) // 64) * 64,
        "bos_token_id": wrapped.bos_token_id,
        "eos_token_id": wrapped.eos_token_id,
        "pad_token_id": wrapped.pad_token_id,
    }


def write_model(folder: Path, seed: int = 0) -> None:
    """Makes the folder, whole or not at all. Does nothing when the same model is already there."""
    wanted = json.dumps({"shape": SHAPE, "sharper": SHARPER, "vocabulary": VOCABULARY, "seed": seed}, sort_keys=True)
    marker = folder / MARKER
    if marker.exists() and marker.read_text() == wanted:
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokens = write_tokenizer(partial, seed)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **tokens)).to(torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(SHARPER)
            layer.self_attn.k_proj.weight.mul_(SHARPER)
    model.save_pretrained(partial)
    (partial / MARKER).write_text(wanted)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(f"{folder}: Llama, {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M random parameters")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
