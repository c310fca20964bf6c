"""Writes a tiny Llama with random weights in llama.cpp's file format: `tiny_gguf.py OUT`.

Run by the Python of llama.cpp's virtual environment, which has no PyTorch. Tokens are bytes.
"""

from __future__ import annotations

import sys

import gguf
import numpy

HIDDEN, HEADS, LAYERS, CONTEXT = 128, 4, 2, 4096
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokens() -> list[str]:
    """The characters by which GPT-2's tokenizer represents bytes, after two special tokens."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return ["<s>", "</s>", *map(chr, kept), *(chr(256 + number) for number in range(256 - len(kept)))]


def main(out: str) -> None:
    """Write the file."""
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    tokens = byte_tokens()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    random = numpy.random.default_rng(0)

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0.0, 0.2, shape).astype(numpy.float32))

    def norm(name: str) -> None:
        writer.add_tensor(name, numpy.ones(HIDDEN, dtype=numpy.float32))

    weights("token_embd.weight", len(tokens), HIDDEN)
    weights("output.weight", len(tokens), HIDDEN)
    norm("output_norm.weight")
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        for name in ("ffn_gate", "ffn_up"):
            weights(f"blk.{layer}.{name}.weight", 2 * HIDDEN, HIDDEN)
        weights(f"blk.{layer}.ffn_down.weight", HIDDEN, 2 * HIDDEN)
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
