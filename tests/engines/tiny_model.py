"""Writes tiny models with random weights, so that engines load a model without a download.

Run by the Python of an engine's virtual environment, which has PyTorch and Transformers:
`tiny_model.py llama OUT`, `tiny_model.py chat OUT`, `tiny_model.py adapter OUT LLAMA` or `tiny_model.py encoder OUT`.

The Llama's tokens are bytes, and only those of printable ASCII have a logit other than 0. The text of a response then
has the tokens that were generated, whatever its length, so that a response that is continued from its text equals one
that was not interrupted; and a response never ends before `max_tokens`. In `chat` the token that ends a response has a
logit too: at temperature 0 a response has the same length for the same prompt, which is not known before. `chat` has
nine million parameters, so that a prompt costs CPU time that a prefix cache can spare.
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN, HEADS, LAYERS, CONTEXT = 128, 4, 2, 8192
CHAT_HIDDEN, CHAT_HEADS, CHAT_LAYERS = 384, 8, 6
SPECIAL = ("<s>", "</s>", "<pad>")
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ADAPTER_RANK = 8


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, after the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    begin, end, padding = SPECIAL
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end, pad_token=padding)
    made.chat_template = TEMPLATE
    made.model_max_length = CONTEXT
    return made


def write_llama(out: Path, *, ends: bool = False) -> None:
    """A Llama that generates printable text of ASCII; `ends`: it ends responses itself, and is larger."""
    hidden, heads, layers = (CHAT_HIDDEN, CHAT_HEADS, CHAT_LAYERS) if ends else (HIDDEN, HEADS, LAYERS)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2 if ends else 0.4,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config)
    printable = string.ascii_letters + string.digits + string.punctuation + " "
    kept = torch.zeros(len(tokenizer), 1)
    kept[tokenizer(printable, add_special_tokens=False)["input_ids"]] = 1.0
    kept[config.eos_token_id] = float(ends)
    with torch.no_grad():
        model.lm_head.weight.mul_(kept)
    model.save_pretrained(out)


def write_adapter(out: Path, base: Path) -> None:
    """A LoRA adapter of the Llama, with random weights that change its responses (PEFT's file format)."""
    torch.manual_seed(1)
    tensors = {}
    for layer in range(LAYERS):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(ADAPTER_RANK, HIDDEN)
            tensors[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, ADAPTER_RANK)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": ADAPTER_RANK,
        "lora_alpha": ADAPTER_RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (out / "adapter_config.json").write_text(json.dumps(settings))


def write_encoder(out: Path) -> None:
    """A BERT of two layers, whose embeddings are meaningless but reproducible."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(out)
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        pad_token_id=2,
    )
    BertModel(config).save_pretrained(out)


def main() -> None:
    """Write the files that the arguments select."""
    kind, out, *more = sys.argv[1:]
    if kind in ("llama", "chat"):
        write_llama(Path(out), ends=kind == "chat")
    elif kind == "adapter":
        write_adapter(Path(out), Path(more[0]))
    else:
        write_encoder(Path(out))


if __name__ == "__main__":
    main()
