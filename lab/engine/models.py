"""Models that a fake engine can serve, with the sizes that determine the time per token."""

from __future__ import annotations

import msgspec

BYTES_PER_VALUE = 2
"""bf16, for weights and for the KV cache."""


class ServedModel(msgspec.Struct, frozen=True):
    """A dense decoder-only transformer with grouped-query attention and a separate output projection."""

    name: str
    parameters: int
    layers: int
    hidden_size: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context_tokens: int
    """Maximum length of a sequence."""

    @property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return self.parameters * BYTES_PER_VALUE

    @property
    def output_parameters(self) -> int:
        """Parameters of the projection onto the vocabulary, which is computed only for tokens that are sampled from."""
        return self.vocabulary * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of the layers, which every token passes: all but the output projection and the input embedding."""
        return self.parameters - 2 * self.output_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Size of a key and a value per layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES_PER_VALUE


MODELS: dict[str, ServedModel] = {
    model.name: model
    for model in (
        ServedModel("llama-3.1-8b", 8_030_261_248, 32, 4096, 8, 128, 128_256, 131_072),
        ServedModel("llama-3.1-70b", 70_553_706_496, 80, 8192, 8, 128, 128_256, 131_072),
        ServedModel("qwen2.5-32b", 32_763_876_352, 64, 5120, 8, 128, 152_064, 131_072),
    )
}
"""Models by name. Shapes are from each model's published config.json (meta-llama/Llama-3.1-8B, Llama-3.1-70B,
Qwen/Qwen2.5-32B); parameter counts are from the safetensors. Layers x (attention + gated MLP) + two embedding tables of
these shapes add up to those counts within 0.01 %."""
