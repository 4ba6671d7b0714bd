"""Writes the golden files of a model folder by Hugging Face transformers in float32.

    python scripts/golden.py targets/_model/tiny --chats heldout.jsonl --length 2048
    python scripts/golden.py targets/_model/random-fp8

`golden/tokens.json`: prompts, the greedy tokens that follow and the most likely tokens at each position; it is
compiled into the binary, which replays it before it serves. `golden/logits.safetensors`: logits of one longer sequence,
and of the multi-token-prediction layer, at positions where pages, cells and splits begin and end. Weights are
dequantised here, independently of the server's loader. Nothing is cached: a model may lack the layers whose cache
transformers measures. The format of tokens.json is described in src/model/selfcheck.rs.

Prompts are chats of a file in the model's folder (one JSON object with `messages` per line), taken at even distances
and written with the model's template, or random tokens. Needs torch, transformers and safetensors.
"""

import argparse
import json
import pathlib

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

LENGTH = 300  # tokens of the long sequence; crosses four pages of 64 and a split of 256
BOUNDARIES = [64, 128, 192, 256, 512, 1024, 1536]  # of pages and recurrent cells; from 256 on of attention's splits
FIRST = [0, 1, 2, 3]  # while the convolution of four taps fills
PROMPT_LENGTHS = [1, 2, 5, 9, 17, 40, 64, 65]
CHATS = 10
REPLY = 16
TOP = 20
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
SCALES = ("weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "input_scale",
          "input_global_scale")


def read(folder):
    """All tensors with names as in a text-only release."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensors[name.replace("model.language_model.", "model.")] = file.get_tensor(name)
    return tensors


def unpack(codes):
    low, high = codes & 15, codes >> 4
    return E2M1[torch.stack([low, high], -1).flatten(-2).long()]


def dequantise(tensors):
    """Float32 weights by module name."""
    weights = {}
    for name, t in tensors.items():
        stem, _, kind = name.rpartition(".")
        get = lambda suffix: tensors.get(f"{stem}.{suffix}")
        if kind in SCALES or kind in ("k_scale", "v_scale"):
            continue
        if kind == "weight_packed":
            scale = get("weight_scale").float() / get("weight_global_scale")
            weights[f"{stem}.weight"] = unpack(t) * scale.repeat_interleave(16, 1)
        elif kind == "weight" and get("weight_scale_2") is not None:
            scale = get("weight_scale").float() * get("weight_scale_2")
            weights[name] = unpack(t) * scale.repeat_interleave(16, 1)
        elif kind == "weight" and get("weight_scale_inv") is not None:
            scale = get("weight_scale_inv").float().repeat_interleave(128, 0).repeat_interleave(128, 1)
            weights[name] = t.float() * scale[: t.shape[0], : t.shape[1]]
        else:
            weights[name] = t.float()
    return stack_experts(weights)


def stack_experts(weights):
    """Per-expert matrices become `experts.gate_up_proj` and `experts.down_proj`, as the classes hold them."""
    stacked, parts = {}, {}
    for name, w in weights.items():
        head, found, tail = name.partition(".mlp.experts.")
        if found and tail[0].isdigit():
            expert, kind, _ = tail.split(".")
            parts.setdefault(f"{head}.mlp.experts", {})[int(expert), kind] = w
        else:
            stacked[name] = w
    for prefix, part in parts.items():
        experts = range(1 + max(e for e, _ in part))
        gate_up = [torch.cat([part[e, "gate_proj"], part[e, "up_proj"]]) for e in experts]
        stacked[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        stacked[f"{prefix}.down_proj"] = torch.stack([part[e, "down_proj"] for e in experts])
    return stacked


class Mtp(torch.nn.Module):
    """The multi-token-prediction layer, of the family's own blocks; transformers has none.

    Row `t` reads the token at `t + 1` and the hidden state at `t` (after the model's last norm) and predicts the token
    at `t + 2`.
    """

    def __init__(self, config):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        one = Qwen3_5MoeTextConfig(**{**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        one._attn_implementation = "eager"
        self.pre_fc_norm_embedding = hf.Qwen3_5MoeRMSNorm(size, eps)
        self.pre_fc_norm_hidden = hf.Qwen3_5MoeRMSNorm(size, eps)
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.layers = torch.nn.ModuleList([hf.Qwen3_5MoeDecoderLayer(one, 0)])
        self.norm = hf.Qwen3_5MoeRMSNorm(size, eps)

    def forward(self, model, following, hidden):
        embedded = self.pre_fc_norm_embedding(model.model.embed_tokens(following))
        x = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], -1))
        rows = x.shape[1]
        positions = torch.arange(rows).expand(3, 1, rows)
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        x = self.layers[0](x, model.model.rotary_emb(x, positions), attention_mask=mask)
        return model.lm_head(self.norm(x))


def load(folder):
    config = json.loads((folder / "config.json").read_text())
    config = Qwen3_5MoeTextConfig(**config.get("text_config", config))
    config._attn_implementation = "eager"
    weights = dequantise(read(folder))
    model = hf.Qwen3_5MoeForCausalLM(config).float().eval()
    own = {name: w for name, w in weights.items() if not name.startswith("mtp.")}
    own.setdefault("lm_head.weight", own["model.embed_tokens.weight"])
    model.load_state_dict(own, strict=True)
    draft = {name.removeprefix("mtp."): w for name, w in weights.items() if name.startswith("mtp.")}
    mtp = None
    if draft:
        mtp = Mtp(config).float().eval()
        mtp.load_state_dict(draft, strict=True)
    return model, mtp


def greedy(model, prompt):
    """The reply and the most likely tokens at each of its positions."""
    tokens, top = [], []
    for _ in range(REPLY):
        logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1]
        values, ids = logits.log_softmax(-1).topk(TOP)
        tokens.append(int(ids[0]))
        top.append([[int(i), round(float(v), 5)] for i, v in zip(ids, values)])
    return {"prompt": prompt, "tokens": tokens, "top": top}


def positions(length):
    """The first ones, the last ones, and three at each boundary."""
    near = {boundary + side for boundary in BOUNDARIES for side in (-1, 0, 1)}
    return sorted(at for at in near | {*FIRST, length - 2, length - 1} if at < length)


def long_sequence(model, mtp, tokens):
    ids, at = torch.tensor([tokens]), positions(len(tokens))
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[0, at])
    print(f"{len(tokens)} tokens, spread of logits {float(logits.std()):.2f}, largest {float(logits.abs().max()):.2f}")
    tensors = {"tokens": ids[0].int(), "positions": torch.tensor(at).int(), "logits": logits}
    if mtp:
        drafted = mtp(model, ids[:, 1:], hidden[:, :-1])
        tensors["drafts"] = drafted[0, at[:-1]].contiguous()
    return tensors


def random_prompts(vocab, length):
    """Prompts, and the long sequence."""
    random = torch.Generator().manual_seed(7)
    draw = lambda count: torch.randint(vocab, (count,), generator=random).tolist()
    return [draw(length) for length in PROMPT_LENGTHS], draw(length)


def chat_prompts(folder, file, length):
    """Prompts, and the long sequence: chats one after the other."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chats = [json.loads(line)["messages"] for line in (folder / file).read_text().splitlines()]
    rendered = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    return rendered[:: len(chats) // CHATS][:CHATS], sum(rendered, [])[:length]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--chats", help="file of chats in FOLDER; random tokens without it")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of the long sequence (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    folder = arguments.folder
    model, mtp = load(folder)
    prompts, tokens = (chat_prompts(folder, arguments.chats, arguments.length) if arguments.chats
                       else random_prompts(model.config.vocab_size, arguments.length))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    golden = folder / "golden"
    golden.mkdir(exist_ok=True)
    save_file(long_sequence(model, mtp, tokens), golden / "logits.safetensors", metadata=versions)
    sequences = ",\n".join(json.dumps(greedy(model, prompt), separators=(",", ":")) for prompt in prompts)
    text = f'{{"format":1,"versions":{json.dumps(versions)},"sequences":[\n{sequences}\n]}}\n'
    (golden / "tokens.json").write_text(text)


if __name__ == "__main__":
    main()
