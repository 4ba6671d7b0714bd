"""The family `sliding` in float32: layers of transformers' Qwen3 in two shapes, over a window of positions or over all.

No class of transformers computes it: those with two widths of heads have other layer math too. Each layer is Qwen3's,
of a configuration with its own kind's heads; angles are Qwen3's of that configuration; which positions a row sees is
said here, and nothing else. Words of the configuration are those of Gemma 4.
"""

import types

import torch
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

TYPE = "sliding"  # `model_type` of its configurations
FULL, SLIDING = "full_attention", "sliding_attention"


def shape(config, kind):
    """Qwen3's configuration whose heads are those of one kind of layer."""
    own = dict(num_key_value_heads=config["num_key_value_heads"], head_dim=config["head_dim"])
    if kind == FULL:
        own = dict(num_key_value_heads=config["num_global_key_value_heads"], head_dim=config["global_head_dim"])
    own = Qwen3Config(**{**config, **own, "model_type": "qwen3", "rope_parameters": config["rope_parameters"][kind]})
    own._attn_implementation = "eager"
    return own


class Decoder(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        shapes = {kind: shape(config, kind) for kind in (FULL, SLIDING)}
        self.config, self.kinds = shapes[FULL], config["layer_types"]
        self.windows = {FULL: config["max_position_embeddings"], SLIDING: config["sliding_window"]}
        self.embed_tokens = torch.nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = torch.nn.ModuleList(Qwen3DecoderLayer(shapes[kind], i) for i, kind in enumerate(self.kinds))
        self.norm = Qwen3RMSNorm(config["hidden_size"], eps=config["rms_norm_eps"])
        self.angles = torch.nn.ModuleDict({kind: Qwen3RotaryEmbedding(of) for kind, of in shapes.items()})

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        cache = past_key_values or DynamicCache()
        start, x = cache.get_seq_length(), self.embed_tokens(input_ids)
        positions = torch.arange(start, start + x.shape[1])
        behind = positions[:, None] - torch.arange(start + x.shape[1])  # of a row's own position
        masks = {kind: torch.zeros(behind.shape).masked_fill((behind < 0) | (behind >= window), float("-inf"))[None, None]
                 for kind, window in self.windows.items()}
        angles = {kind: of(x, positions[None]) for kind, of in self.angles.items()}
        for layer, kind in zip(self.layers, self.kinds):
            x = layer(x, attention_mask=masks[kind], position_embeddings=angles[kind], past_key_values=cache)
        return types.SimpleNamespace(last_hidden_state=self.norm(x), past_key_values=cache if use_cache else None)


class SlidingForCausalLM(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = torch.nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        if config["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def get_decoder(self):
        return self.model

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        out = self.model(input_ids, past_key_values, use_cache)
        return types.SimpleNamespace(logits=self.lm_head(out.last_hidden_state), past_key_values=out.past_key_values)


def build(config, weights):
    """A model of these weights, every one of them used and none missing."""
    model = SlidingForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight"] if config["tie_word_embeddings"] else []
    if missing != tied or unexpected:
        raise SystemExit(f"the family and the checkpoint differ: missing {missing}, unexpected {unexpected}")
    return model.float().eval()
