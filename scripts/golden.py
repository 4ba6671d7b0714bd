"""Writes the golden files of a model folder by Hugging Face transformers, for any family that it reads.

    python scripts/golden.py targets/_model/tiny --chats heldout.jsonl --length 2048
    python scripts/golden.py targets/_model/random-fp8
    python scripts/golden.py targets/_model/gemma3-270m --weights MADE --text src/check/text_check/text.txt \
        --length 1100 --columns 2048
    python scripts/golden.py targets/_model/smollm2-135m --weights MADE --chats chats.jsonl --text \
        src/check/text_check/text.txt --length 2000 --columns 4096 --replies 64

`golden/tokens.json`: prompts, the greedy tokens that follow and the most likely tokens at each position; it is
compiled into the binary, which replays it before it serves. `golden/logits.safetensors`: logits of one longer sequence,
and of the multi-token-prediction layer, at positions where pages, cells and splits begin and end. Weights are
dequantised here, independently of the server's loader, and named and stacked as modules are by transformers itself.
Angles of rotary positions are exact: those of float32 frequencies are off by more the further a position is.
Trained models are computed in float32, drawn ones in float64: their products cancel, so that float32 is off by as much
as a server may be.
A model with recurrent layers caches nothing: it may lack the layers whose cache transformers measures. The family
`sliding`, which transformers has not, is that of `sliding_model.py`. The format of
tokens.json is described in src/check/selfcheck.rs.

Prompts are chats of a file in the model's folder (one JSON object with `messages` per line), taken at even distances
and written with the model's template, beginnings of a text, or random tokens; the long sequence is a text, those chats
one after the other, or random tokens. For weights that the repository does not hold, `--weights` says where they are.
With `--columns` the logits of so many tokens are kept, evenly spread (`columns`), and of all positions the likeliest
token (`likeliest`) and the log-probability of the token that follows (`likelihoods`). With `--replies`, `golden/chats.json` has the prompt and
so many greedy tokens of every chat. Needs torch, transformers and safetensors.
"""

import argparse
import contextlib
import functools
import json
import math
import pathlib
import sys

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import sliding_model

LENGTH = 300  # tokens of the long sequence; crosses four pages of 64 and a split of 256
BOUNDARIES = [64, 128, 192, 256, 512, 1024, 1536]  # of pages and recurrent cells; from 256 on of attention's splits
FIRST = [0, 1, 2, 3]  # while the convolution of four taps fills
PROMPT_LENGTHS = [1, 2, 5, 9, 17, 40, 64, 65]
CHATS = 10
REPLY = 16
TOP = 20
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
PAIRS = torch.stack([E2M1.repeat(16), E2M1.repeat_interleave(16)], -1)  # of a byte, its low half first
TOWERS = ("model.visual.", "model.vision_tower.", "model.embed_vision.")  # of images
SCALES = ("weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "input_scale",
          "input_global_scale")


def read(folder):
    """All tensors of a checkpoint."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}
    return renamed(tensors)


# Names of Mistral's own code, and those of modules of transformers, each replaced in turn.
OWN = (("tok_embeddings", "model.embed_tokens"), ("output", "lm_head"), ("layers", "model.layers"),
       ("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attention", "self_attn"),
       ("wq_a", "q_a_proj"), ("q_a_norm", "q_a_layernorm"), ("wq_b", "q_b_proj"), ("wkv_b", "kv_b_proj"),
       ("wkv_a_with_mqa", "kv_a_proj_with_mqa"), ("kv_a_norm", "kv_a_layernorm"), ("wo", "o_proj"),
       ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"), ("feed_forward", "mlp"), ("gate", "mlp.gate"),
       ("experts", "mlp.experts"), ("shared_experts", "mlp.shared_experts"))


def renamed(tensors):
    """Tensors by names of modules, where they have those of Mistral's own code."""
    if "tok_embeddings.weight" not in tensors:
        return tensors
    names = dict(OWN)
    named = lambda name: ".".join(names.get(part, part) for part in name.split("."))
    return {"model.norm.weight" if name == "norm.weight" else named(name): t for name, t in tensors.items()}


def configuration(folder):
    """Facts of a checkpoint in transformers' words."""
    if (own := folder / "params.json").exists():
        return mistral(json.loads(own.read_text()))
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    if config["model_type"] == "nemotron_h":
        # Steps of time are limited from 0 on by `time_step_limit`, for which the class takes this word.
        config["time_step_min"] = 0.0
    return config


def layers(config):
    """How many layers a model has."""
    return len(config.get("hybrid_override_pattern", ())) or config["num_hidden_layers"]


def mistral(params):
    """Words of Mistral's own `params.json`. Where it says that YaRN applies no scale, scores do not grow either: the
    libraries that serve such a release read it so, while transformers' conversion leaves the word out."""
    yarn, moe = params["yarn"], params["moe"]
    assert not yarn["apply_scale"], "yarn.apply_scale: only false is known"
    kept = ("vocab_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
            "max_position_embeddings")
    return {word: params[word] for word in kept} | dict(
        model_type="mistral4", architectures=["Mistral4ForCausalLM"], hidden_size=params["dim"],
        num_hidden_layers=params["n_layers"], num_attention_heads=params["n_heads"],
        num_key_value_heads=params["n_heads"], rms_norm_eps=params["norm_eps"],
        tie_word_embeddings=params["tied_embeddings"], n_routed_experts=moe["num_experts"],
        num_experts_per_tok=moe["num_experts_per_tok"], moe_intermediate_size=moe["expert_hidden_dim"],
        n_shared_experts=moe["num_shared_experts"],
        rope_parameters=dict(
            rope_type="yarn", rope_theta=params["rope_theta"], factor=yarn["factor"], beta_fast=yarn["beta"],
            beta_slow=yarn["alpha"], original_max_position_embeddings=yarn["original_max_position_embeddings"],
            attention_factor=1.0, llama_4_scaling_beta=params["llama_4_scaling"]["beta"]))


def unpack(codes):
    """Two numbers of each byte."""
    return torch.nn.functional.embedding(codes.int(), PAIRS.to(codes.device)).flatten(-2)


def dequantise(tensors):
    """Float32 weights by the name that they have in BF16, experts stacked."""
    weights = {name: dequantised(tensors, name) for name in names(tensors)}
    for stack, experts in stacks(weights).items():
        # One by one out of `weights`: those of a wide model fit once.
        weights[stack] = torch.stack([torch.cat([weights.pop(name) for name in each]) for each in experts])
    return weights


def names(tensors):
    """Names of weights in BF16."""
    for name in tensors:
        stem, _, kind = name.rpartition(".")
        if name.endswith("_blocks"):
            yield name.removesuffix("_blocks")
        elif kind == "weight_packed":
            yield f"{stem}.weight"
        elif not name.endswith("_scales") and kind not in (*SCALES, "k_scale", "v_scale"):
            yield name


def dequantised(tensors, name):
    """The float32 weight of a name."""
    if (blocks := tensors.get(f"{name}_blocks")) is not None:
        scale = torch.exp2(tensors[f"{name}_scales"].float() - 127)
        # Modules of gpt-oss hold matrices with a column for each output.
        return (unpack(blocks) * scale[..., None]).flatten(-2).transpose(-1, -2).contiguous()
    stem = name.rpartition(".")[0]
    get = lambda suffix: tensors.get(f"{stem}.{suffix}")
    if (packed := get("weight_packed")) is not None:
        return grouped(packed, get("weight_scale").float() / get("weight_global_scale"))
    t = tensors[name]
    if not name.endswith(".weight"):
        return t.float()
    if (whole := get("weight_scale_2")) is not None:
        return grouped(t, get("weight_scale").float() * whole)
    if (inverse := get("weight_scale_inv")) is not None:
        scale = inverse.float().repeat_interleave(128, 0).repeat_interleave(128, 1)
        return t.float() * scale[: t.shape[0], : t.shape[1]]
    if (scale := get("weight_scale")) is not None:
        return t.float() * scale.float()
    return t.float()


def grouped(codes, scale):
    """Numbers of E2M1 codes, of which 16 share a scale."""
    return unpack(codes).unflatten(-1, (-1, 16)).mul_(scale[..., None]).flatten(-2)


# Matrices of experts under the names of Mixtral.
MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def stacks(names):
    """Stacks of experts as modules hold them, `experts.gate_up_proj`, or `experts.up_proj` without gates, and
    `experts.down_proj`: for each expert the names of its matrices that lie there one below the other."""
    parts = {}
    for name in names:
        head, found, tail = name.partition(".experts.")
        if found and tail[0].isdigit():
            expert, kind, _ = tail.split(".")
            kind = MIXTRAL.get(kind, kind)
            parts.setdefault(f"{head.removesuffix('.moe')}.experts", {})[int(expert), kind] = name
    found = {}
    for prefix, part in parts.items():
        inputs = [kind for kind in ("gate_proj", "up_proj") if (0, kind) in part]
        into = "gate_up_proj" if len(inputs) > 1 else "up_proj"
        for stack, kinds in ((into, inputs), ("down_proj", ["down_proj"])):
            experts = range(1 + max(expert for expert, _ in part))
            found[f"{prefix}.{stack}"] = [[part[expert, kind] for kind in kinds] for expert in experts]
    return found


class Mtp(torch.nn.Module):
    """The multi-token-prediction layer, of the model's own blocks; transformers has none.

    Row `t` reads the token at `t + 1` and the hidden state at `t` (after the model's last norm) and predicts the token
    at `t + 2`.
    """

    def __init__(self, model):
        super().__init__()
        decoder, config = model.get_decoder(), model.get_decoder().config
        size, eps = config.hidden_size, config.rms_norm_eps
        norm, layer = type(decoder.norm), type(decoder.layers[0])
        one = type(config)(**{**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        one._attn_implementation, one._experts_implementation = "eager", config._experts_implementation
        self.pre_fc_norm_embedding = norm(size, eps)
        self.pre_fc_norm_hidden = norm(size, eps)
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.layers = torch.nn.ModuleList([layer(one, 0)])
        self.norm = norm(size, eps)

    def forward(self, model, following, hidden):
        decoder = model.get_decoder()
        embedded = self.pre_fc_norm_embedding(decoder.embed_tokens(following))
        x = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], -1))
        rows = x.shape[1]
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        x = self.layers[0](x, decoder.rotary_emb(x, torch.arange(rows)[None]), attention_mask=mask)
        return model.lm_head(self.norm(x))


class MtpOfBlocks(torch.nn.Module):
    """The same of Nemotron-H, whose layers are one block each: attention without positions, then experts."""

    def __init__(self, model):
        super().__init__()
        decoder = model.get_decoder()
        config, size = decoder.config, decoder.config.hidden_size
        norm = lambda: type(decoder.norm_f)(size, eps=config.layer_norm_epsilon)
        both = type(config)(**{**config.to_dict(), "layers_block_type": ["full_attention", "moe"]})
        both._attn_implementation, both._experts_implementation = "eager", config._experts_implementation
        mixing, feeding = (type(decoder.layers[0])(both, at) for at in range(2))
        mixing.enorm, mixing.hnorm = norm(), norm()
        mixing.eh_proj = torch.nn.Linear(2 * size, size, bias=False)
        feeding.final_layernorm = norm()
        self.layers = torch.nn.ModuleList([mixing, feeding])

    def forward(self, model, following, hidden):
        mixing, feeding = self.layers
        embedded = mixing.enorm(model.get_decoder().embeddings(following))
        x = mixing.eh_proj(torch.cat([embedded, mixing.hnorm(hidden)], -1))
        rows = x.shape[1]
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        return model.lm_head(feeding.final_layernorm(feeding(mixing(x, attention_mask=mask))))


def class_of(config):
    """The class and the configuration that it takes: the text model alone where transformers has it."""
    text = config.get("text_config", config)
    known = transformers.CONFIG_MAPPING[text["model_type"]]
    if known in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[known], known(**text)
    return getattr(transformers, config["architectures"][0]), transformers.CONFIG_MAPPING[config["model_type"]](**config)


def build(config, weights, **options):
    """A model of these weights, every one of them used and none missing but those of a tower for images. It takes their
    memory where it stacks nothing; `options` are those of transformers."""
    if config.get("model_type") == sliding_model.TYPE:
        return sliding_model.build(config, weights)
    kind, config = class_of(config)
    model, loaded = kind.from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32,
                                         attn_implementation="eager", output_loading_info=True, **options)
    missing = [name for name in loaded["missing_keys"] if not name.startswith(TOWERS)]
    if missing or loaded["unexpected_keys"] or loaded["mismatched_keys"]:
        sys.exit(f"{kind.__name__} and the checkpoint differ: {loaded}")
    if hasattr(embedding := model.get_input_embeddings(), "embed_scale"):  # of a BF16 model
        embedding.embed_scale = embedding.embed_scale.bfloat16()
    return model.eval()


def frequencies(rotary, facts, rounded):
    """Radians per position of each pair, in float64; `rounded` are those of transformers."""
    pairs = len(rounded)
    if facts["rope_type"] == "proportional":
        turned = rounded.count_nonzero()
        assert turned == int(facts["partial_rotary_factor"] * pairs)
    exact = float(facts["rope_theta"]) ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    if facts["rope_type"] == "llama3":
        low, high, factor = (facts[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
        turns = facts["original_max_position_embeddings"] * exact / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        exact = exact * (kept + (1 - kept) / factor)
    if facts["rope_type"] == "yarn":
        wavelength = lambda turns: facts["original_max_position_embeddings"] / (turns * 2 * math.pi)
        pair = lambda turns: pairs * math.log(wavelength(turns)) / math.log(facts["rope_theta"])
        low, high = pair(facts["beta_fast"]), pair(facts["beta_slow"])
        if facts.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        slowed = ((torch.arange(pairs, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
        exact = exact * (slowed / facts["factor"] + 1 - slowed)
    if facts["rope_type"] == "proportional":
        exact[turned:] = 0
    torch.testing.assert_close(exact.float(), rounded, rtol=1e-5, atol=0)
    return exact


def turn(rotary, exact, x, position_ids):
    """Cosines and sines of each position, of which images have three and text has one; gpt-oss takes each once."""
    positions = position_ids[0] if position_ids.dim() == 3 else position_ids
    copies = 1 if rotary.config.model_type == "gpt_oss" else 2
    angles, growth = torch.cat(copies * [positions[..., None].double() * exact], -1), rotary.attention_scaling
    return (growth * angles.cos()).to(x.dtype), (growth * angles.sin()).to(x.dtype)


def turn_by_kind(rotary, x, position_ids, kind):
    """The same of layers whose frequencies are those of their kind."""
    exact = frequencies(rotary, rotary.config.rope_parameters[kind], getattr(rotary, f"{kind}_inv_freq"))
    angles = torch.cat(2 * [position_ids[..., None].double() * exact], -1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Wide(TorchFunctionMode):
    """What transformers computes in float32, whatever the model's numbers are, is in float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        widened = lambda value: torch.float64 if value is torch.float32 else value
        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*map(widened, args), **{key: widened(value) for key, value in (kwargs or {}).items()})


def load(folder, wide=False):
    """The model, and its drafting layer if it has one; numbers are float64 if `wide`."""
    config, weights = configuration(folder), dequantise(read(folder))
    draft = {name.removeprefix("mtp."): weights.pop(name) for name in list(weights) if name.startswith("mtp.")}
    # Grouped products are of float32 at most.
    model = build(config, weights, **({"experts_implementation": "eager"} if wide else {}))
    for module in model.get_decoder().modules():
        if hasattr(module, "inv_freq"):
            exact = frequencies(module, module.config.rope_parameters, module.inv_freq)
            module.forward = functools.partial(turn, module, exact)
        elif hasattr(module, "full_attention_inv_freq"):
            module.forward = functools.partial(turn_by_kind, module)
    mtp = None
    if draft:
        kind = MtpOfBlocks if model.config.model_type == "nemotron_h" else Mtp
        mtp = kind(model).float().eval()
        mtp.load_state_dict(draft, strict=True)
    return (model.double(), mtp and mtp.double()) if wide else (model, mtp)


def steps(model, prompt, count):
    """The logits after the prompt and after each greedy token, one row after the other."""
    config = model.get_decoder().config
    caches = not any(hasattr(config, word) for word in ("linear_num_value_heads", "mamba_num_heads"))
    cache, tokens = None, list(prompt)
    for _ in range(count):
        rows = tokens if cache is None else tokens[-1:]
        out = model(input_ids=torch.tensor([rows]), past_key_values=cache, use_cache=caches)
        cache = out.past_key_values if caches else None
        yield out.logits[0, -1]
        tokens.append(int(out.logits[0, -1].argmax()))


def greedy(model, prompt):
    """The reply and the most likely tokens at each of its positions."""
    tokens, top = [], []
    for logits in steps(model, prompt, REPLY):
        values, ids = logits.log_softmax(-1).topk(TOP)
        tokens.append(int(ids[0]))
        top.append([[int(i), round(float(v), 5)] for i, v in zip(ids, values)])
    return {"prompt": prompt, "tokens": tokens, "top": top}


def positions(length):
    """The first ones, the last ones, and three at each boundary."""
    near = {boundary + side for boundary in BOUNDARIES for side in (-1, 0, 1)}
    return sorted(at for at in near | {*FIRST, length - 2, length - 1} if at < length)


def head(model, hidden):
    """Logits of hidden states."""
    return capped(model, model.lm_head(hidden))


def capped(model, logits):
    cap = getattr(model.get_decoder().config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


def long_sequence(model, mtp, tokens, columns):
    ids, at = torch.tensor([tokens]), positions(len(tokens))
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    logits = head(model, hidden[0, at])
    print(f"{len(tokens)} tokens, spread of logits {float(logits.std()):.2f}, largest {float(logits.abs().max()):.2f}")
    tensors = {"tokens": ids[0].int(), "positions": torch.tensor(at).int(), "logits": logits}
    if mtp:
        drafted = mtp(model, ids[:, 1:], hidden[:, :-1])
        tensors["drafts"] = drafted[0, at[:-1]].contiguous()
    if columns:
        kept = torch.arange(0, logits.shape[-1], logits.shape[-1] // columns)
        tensors |= {"columns": kept.int(), "logits": logits[:, kept].contiguous()} | everywhere(model, hidden[0], ids[0])
    return tensors


def everywhere(model, hidden, ids):
    """Of all positions the likeliest token and, but for the last, the log-probability of the one that follows."""
    rows = [head(model, part).log_softmax(-1) for part in hidden.split(64)]
    likely = torch.cat([part.gather(-1, next[:, None])[:, 0] for part, next in zip(rows, ids.roll(-1).split(64))])
    print(f"negative log-likelihood {-float(likely[:-1].double().mean()):.4f} nats per token")
    return {"likeliest": torch.cat([part.argmax(-1) for part in rows]).int(), "likelihoods": likely[:-1].contiguous()}


def random_prompts(vocab, length):
    """Prompts, and the long sequence."""
    random = torch.Generator().manual_seed(7)
    draw = lambda count: torch.randint(vocab, (count,), generator=random).tolist()
    return [draw(length) for length in PROMPT_LENGTHS], draw(length)


def rendered(tokenizer, file):
    """Token ids of every chat, up to where the model answers."""
    chats = [json.loads(line)["messages"] for line in file.read_text().splitlines()]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


def replies(model, tokenizer, prompts, count):
    """Greedy replies of all chats, up to the token that ends a turn."""
    for prompt in prompts:
        tokens = []
        for logits in steps(model, prompt, count):
            tokens.append(int(logits.argmax()))
            if tokens[-1] == tokenizer.eos_token_id:
                break
        yield {"prompt": prompt, "tokens": tokens, "text": tokenizer.decode(tokens, skip_special_tokens=True)}


def lines(sequences):
    return ",\n".join(json.dumps(sequence, separators=(",", ":"), ensure_ascii=False) for sequence in sequences)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--weights", type=pathlib.Path, help="where the checkpoint is, if not in FOLDER")
    parser.add_argument("--chats", help="file of chats in FOLDER; random tokens without it")
    parser.add_argument("--text", type=pathlib.Path, help="file with the long sequence")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of the long sequence (%(default)s)")
    parser.add_argument("--columns", type=int, help="keep the logits of so many tokens")
    parser.add_argument("--replies", type=int, help="write so many tokens of a reply to every chat")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    folder = arguments.folder
    trained = arguments.chats or arguments.text
    model, mtp = load(arguments.weights or folder, wide=not trained)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    golden = folder / "golden"
    golden.mkdir(exist_ok=True)
    prompts, tokens = random_prompts(model.lm_head.out_features, arguments.length)
    if trained:
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.weights or folder)
    if arguments.text:
        tokens = tokenizer.encode(arguments.text.read_text())[:arguments.length]
        prompts = [tokens[:length] for length in PROMPT_LENGTHS]
    if arguments.chats:
        chats = rendered(tokenizer, folder / arguments.chats)
        prompts = chats[:: len(chats) // CHATS][:CHATS]
        tokens = tokens if arguments.text else sum(chats, [])[:arguments.length]
        if arguments.replies:
            text = f'{{"versions":{json.dumps(versions)},"sequences":[\n' \
                f"{lines(replies(model, tokenizer, chats, arguments.replies))}\n]}}\n"
            (golden / "chats.json").write_text(text)
    with contextlib.nullcontext() if trained else Wide():
        tensors = long_sequence(model, mtp, tokens, arguments.columns)
        sequences = [greedy(model, prompt) for prompt in prompts]
    narrow = {name: values.float() if values.is_floating_point() else values for name, values in tensors.items()}
    save_file(narrow, golden / "logits.safetensors", metadata=versions)
    text = f'{{"format":1,"versions":{json.dumps(versions)},"sequences":[\n{lines(sequences)}\n]}}\n'
    (golden / "tokens.json").write_text(text)


if __name__ == "__main__":
    main()
