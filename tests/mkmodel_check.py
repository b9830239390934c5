"""Checks a checkpoint with nothing but the standard library.

form DIR FORMAT [sparse]   files, headers, index, configuration, tokenizer; ranges of data
routes DIR FIRST LAST      which experts 512 random tokens pick (BF16): all of them, and the
                           popular quarter by the share asked for in first and last layer
"""
import array
import json
import math
import os
import random
import struct
import sys

SIZE = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2, "U8": 1}
ORDER = list(SIZE)


def load(folder):
    """Tensor name -> (file, dtype, shape, place in the file, bytes)."""
    tensors, total = {}, 0
    files = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
    for name in files:
        path = os.path.join(folder, name)
        with open(path, "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            text = f.read(length)
        assert length % 8 == 0 and len(text) == length, name
        header = json.loads(text)
        assert header.pop("__metadata__") == {"format": "pt"}
        at, before = 0, (-1, "")
        for key, t in header.items():
            begin, end = t["data_offsets"]
            place = (ORDER.index(t["dtype"]), key)
            assert begin == at and place > before, key
            assert end - begin == math.prod(t["shape"]) * SIZE[t["dtype"]], key
            assert key not in tensors, key
            tensors[key] = (name, t["dtype"], t["shape"], 8 + length + begin, end - begin)
            at, before = end, place
        assert os.path.getsize(path) == 8 + length + at, name
        total += at
    if len(files) > 1:
        with open(os.path.join(folder, "model.safetensors.index.json")) as f:
            index = json.load(f)
        assert index["metadata"]["total_size"] == total
        assert index["weight_map"] == {k: t[0] for k, t in tensors.items()}
        assert list(index["weight_map"]) == sorted(tensors)
    return tensors


def data(folder, t):
    with open(os.path.join(folder, t[0]), "rb") as f:
        f.seek(t[3])
        return f.read(t[4])


def floats(folder, t):
    if t[1] == "F32":
        return array.array("f", data(folder, t))
    wide = array.array("I", (x << 16 for x in array.array("H", data(folder, t))))
    return array.array("f", wide.tobytes())


def modules(c):
    """Linear module -> its shape, and vectors -> their length."""
    h, d, kv = c["hidden_size"], c["head_dim"], c["num_key_value_heads"]
    linear = {"lm_head": (c["vocab_size"], h), "model.embed_tokens": (c["vocab_size"], h)}
    vector = {"model.norm": h}

    def ffn(name, inner):
        for part in ("gate_proj", "up_proj"):
            linear[name + "." + part] = (inner, h)
        linear[name + ".down_proj"] = (h, inner)

    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        heads = c["num_attention_heads_per_layer"][i]
        for part, shape in (("q", (heads * d, h)), ("k", (kv * d, h)), ("v", (kv * d, h)),
                            ("g", (heads, h)), ("o", (h, heads * d))):
            linear[p + "self_attn." + part + "_proj"] = shape
        for part, n in (("input_layernorm", h), ("post_attention_layernorm", h),
                        ("self_attn.q_norm", d), ("self_attn.k_norm", d)):
            vector[p + part] = n
        if c["mlp_layer_types"][i] == "dense":
            ffn(p + "mlp", c["intermediate_size"])
            continue
        linear[p + "mlp.gate"] = (c["num_experts"], h)
        for x in range(c["num_experts"]):
            ffn(p + "mlp.experts.%d" % x, c["moe_intermediate_size"])
        ffn(p + "mlp.shared_expert", c["shared_expert_intermediate_size"])
    return linear, vector


def format_of(module, form, layers):
    if module in ("lm_head", "model.embed_tokens") or module.endswith(("mlp.gate", "g_proj")):
        return "bf16"
    if form in ("bf16", "w4a16"):
        return form
    if ".experts." not in module:
        return "bf16"
    layer = int(module.split(".")[2])
    if form == "mxfp4":
        return form
    return "bf16" if layer == layers - 1 else "mxfp4" if layer % 2 else "w4a16"


def expected(c, form):
    linear, vector = modules(c)
    want = {k + ".weight": ("BF16", [n]) for k, n in vector.items()}
    for i, kind in enumerate(c["mlp_layer_types"]):
        if kind == "sparse":
            want["model.layers.%d.mlp.experts.e_score_correction_bias" % i] = \
                ("F32", [c["num_experts"]])
    for k, (rows, cols) in linear.items():
        how = format_of(k, form, c["num_hidden_layers"])
        if how == "bf16":
            want[k + ".weight"] = ("BF16", [rows, cols])
        elif how == "w4a16":
            want[k + ".weight_packed"] = ("I32", [rows, cols // 8])
            want[k + ".weight_scale"] = ("BF16", [rows, cols // 32])
            want[k + ".weight_shape"] = ("I64", [2])
        else:
            want[k + ".weight_packed"] = ("U8", [rows, cols // 2])
            want[k + ".weight_scale"] = ("U8", [rows, cols // 32])
    return want, linear


def check_tokenizer(folder, c):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    vocab, merges = t["model"]["vocab"], t["model"]["merges"]
    assert sorted(vocab.values()) == list(range(c["vocab_size"]))
    assert len({a + b for a, b in merges}) == len(merges)
    for a, b in merges:
        assert a in vocab and b in vocab and vocab[a + b] > max(vocab[a], vocab[b])
    assert sum(len(k) == 1 for k in vocab) == 256
    for a in t["added_tokens"]:
        assert vocab[a["content"]] == a["id"]
    assert vocab["</assistant>"] == 24 and vocab["<tool_call>"] == 25


def deviation(folder, tensors, module):
    """Mean and deviation of a matrix as a loader would see it."""
    if module + ".weight" in tensors:
        x = floats(folder, tensors[module + ".weight"])
    else:
        packed, scale = tensors[module + ".weight_packed"], tensors[module + ".weight_scale"]
        nibbles = [n for b in data(folder, packed) for n in (b & 15, b >> 4)]
        if packed[1] == "I32":
            scales = floats(folder, scale)
            values = [n - 8 for n in range(16)]
        else:
            scales = [2.0 ** (b - 127) for b in data(folder, scale)]
            values = [s * m for s in (1, -1) for m in (0, .5, 1, 1.5, 2, 3, 4, 6)]
        x = [values[n] * scales[i // 32] for i, n in enumerate(nibbles)]
    mean = sum(x) / len(x)
    return mean, math.sqrt(sum(v * v for v in x) / len(x))


def check_data(folder, tensors, linear):
    for k, shape in linear.items():
        if k + ".weight_shape" in tensors:
            assert struct.unpack("<2q", data(folder, tensors[k + ".weight_shape"])) == shape, k
    for k in ("model.layers.1.mlp.experts.3.up_proj", "model.layers.1.self_attn.q_proj",
              "model.layers.1.mlp.experts.0.gate_proj"):
        mean, rms = deviation(folder, tensors, k)
        wanted = 1 / math.sqrt(linear[k][1])
        assert abs(rms / wanted - 1) < 0.1 and abs(mean) < 0.06 * wanted, (k, mean, rms, wanted)


def form(folder, how, sparse):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    for name in ("generation_config.json", "tokenizer_config.json"):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            json.load(f)
    assert os.path.getsize(os.path.join(folder, "chat_template.jinja")) > 100
    tensors = load(folder)
    want, linear = expected(c, how)
    have = {k: (t[1], t[2]) for k, t in tensors.items()}
    assert have == want, sorted(set(have) ^ set(want))[:5]
    assert ("quantization_config" in c) == (how != "bf16")
    check_tokenizer(folder, c)
    if not sparse:
        check_data(folder, tensors, linear)
    if c["num_hidden_layers"] == 48:
        experts = sum(".experts." in k and "_bias" not in k for k in tensors)
        assert experts == 108288, experts


def picks(folder, c, tensors, layer, tokens, embed):
    """The experts of each token, were the residual stream its embedding alone."""
    p = "model.layers.%d." % layer
    h = c["hidden_size"]
    norm = floats(folder, tensors[p + "post_attention_layernorm.weight"])
    router = floats(folder, tensors[p + "mlp.gate.weight"])
    bias = floats(folder, tensors[p + "mlp.experts.e_score_correction_bias"])
    rows = [router[i * h:(i + 1) * h] for i in range(c["num_experts"])]
    out = []
    for token in tokens:
        x = embed[token * h:(token + 1) * h]
        rms = math.sqrt(sum(v * v for v in x) / h)
        x = [v / rms * w for v, w in zip(x, norm)]
        score = [1 / (1 + math.exp(-sum(a * b for a, b in zip(r, x)))) + b
                 for r, b in zip(rows, bias)]
        order = sorted(range(len(score)), key=lambda i: -score[i])
        out.append(order[:c["num_experts_per_tok"]])
    return out, bias


def routes(folder, first, last):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    tensors = load(folder)
    embed = floats(folder, tensors["model.embed_tokens.weight"])
    numbers = random.Random(1)
    tokens = [numbers.randrange(32, c["vocab_size"]) for _ in range(512)]
    quarter = c["num_experts"] // 4
    for layer, wanted in ((1, first), (c["num_hidden_layers"] - 1, last)):
        chosen, bias = picks(folder, c, tensors, layer, tokens, embed)
        popular = sorted(range(len(bias)), key=lambda i: -bias[i])[:quarter]
        flat = [x for t in chosen for x in t]
        share = sum(x in popular for x in flat) / len(flat)
        used = len(set(flat))
        print("layer %d: %d of %d experts used, quarter takes %.3f of %.3f asked"
              % (layer, used, len(bias), share, wanted))
        assert used == len(bias) and abs(share - wanted) < 0.06
        near, _ = picks(folder, c, tensors, layer, range(1024, 1088), embed)
        same = sum(len(set(a) & set(b)) for a, b in zip(near, near[1:])) / len(near[1:])
        apart = sum(len(set(a) & set(b)) for a, b in zip(chosen, chosen[1:])) / len(chosen[1:])
        print("  neighbours share %.2f experts, strangers %.2f" % (same, apart))
        assert same > 1.3 * apart


if sys.argv[1] == "form":
    form(sys.argv[2], sys.argv[3], "sparse" in sys.argv)
else:
    routes(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
