#!/usr/bin/env python3
"""Cut a nano checkpoint to its first two layers, for tests: python3 tests/cut_nano.py FROM TO

One dense layer with full attention, one sparse layer with a window; fewer heads, experts,
FFN rows and tokens, so that the result is a small checkpoint that is valid in every respect
(its tokenizer included) and says nothing sensible.  Only the standard library is used.
"""
import json
import os
import struct
import sys

VOCAB, EXPERTS, TOPK, HEADS, HEAD_DIM, INNER = 512, 8, 2, [4, 6], 64, 128
BYTES = {'BF16': 2, 'F32': 4, 'I32': 4, 'I64': 8, 'U8': 1}


def read_tensors(folder):
    for name in sorted(f for f in os.listdir(folder) if f.endswith('.safetensors')):
        with open(os.path.join(folder, name), 'rb') as f:
            blob = f.read()
        n, = struct.unpack('<Q', blob[:8])
        head = json.loads(blob[8:8 + n])
        head.pop('__metadata__', None)
        for key, t in head.items():
            b, e = t['data_offsets']
            yield key, t['dtype'], t['shape'], blob[8 + n + b:8 + n + e]


def wanted(key):
    """The rows and columns of a Linear that stay (None: all), or False to drop the tensor."""
    p = key.split('.')
    if p[0] == 'lm_head' or p[1] == 'embed_tokens':
        return VOCAB, None
    if p[1] == 'norm':
        return None, None
    layer = int(p[2])
    if layer > 1 or ('experts' in p and p[p.index('experts') + 1].isdigit()
                     and int(p[p.index('experts') + 1]) >= EXPERTS):
        return False
    width = HEADS[layer] * HEAD_DIM
    if 'q_proj' in p:
        return width, None
    if 'o_proj' in p:
        return None, width
    if 'g_proj' in p:
        return HEADS[layer], None
    if layer == 0 and ('gate_proj' in p or 'up_proj' in p):
        return INNER, None
    if layer == 0 and 'down_proj' in p:
        return None, INNER
    if p[3:5] == ['mlp', 'gate'] or 'e_score_correction_bias' in p:
        return EXPERTS, None
    return None, None


def cut(key, dtype, shape, data, rows, cols):
    if key.endswith('weight_shape'):
        full = struct.unpack('<2q', data)
        return shape, struct.pack('<2q', rows or full[0], cols or full[1])
    size = BYTES[dtype]
    width = shape[1] if len(shape) == 2 else 1
    keep = width
    if cols:
        per = {'weight_packed': {'I32': 8, 'U8': 2}.get(dtype), 'weight_scale': 32}
        keep = cols // per.get(key.split('.')[-1], 1)
    rows = rows or shape[0]
    data = b''.join(data[r * width * size:(r * width + keep) * size] for r in range(rows))
    return [rows, keep][:len(shape)], data


def write_shard(path, tensors):
    head, at = {'__metadata__': {'format': 'pt'}}, 0
    for key, dtype, shape, data in tensors:
        head[key] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        for t in tensors:
            f.write(t[3])


def cut_config(config):
    config.update(vocab_size=VOCAB, num_hidden_layers=2, num_experts=EXPERTS,
                  num_experts_per_tok=TOPK, num_attention_heads=HEADS[0],
                  num_attention_heads_per_layer=HEADS, intermediate_size=INNER)
    for key in 'layer_types', 'mlp_layer_types', 'gating_types':
        config[key] = config[key][:2]
    return config


def cut_tokenizer(t):
    vocab = t['model']['vocab'] = {k: v for k, v in t['model']['vocab'].items() if v < VOCAB}
    pairs = [m.split(' ') if isinstance(m, str) else m for m in t['model']['merges']]
    t['model']['merges'] = [m for m, p in zip(t['model']['merges'], pairs)
                            if p[0] in vocab and p[1] in vocab and ''.join(p) in vocab]
    return t


def rewrite(source, target, name, change):
    with open(os.path.join(source, name), encoding='utf-8') as f:
        value = change(json.load(f))
    with open(os.path.join(target, name), 'w', encoding='utf-8') as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write('\n')


def main(source, target):
    os.makedirs(target, exist_ok=True)
    tensors = []
    for key, dtype, shape, data in read_tensors(source):
        part = wanted(key)
        if part:
            shape, data = cut(key, dtype, shape, data, *part)
            tensors.append((key, dtype, shape, data))
    write_shard(os.path.join(target, 'model.safetensors'), tensors)
    rewrite(source, target, 'config.json', cut_config)
    rewrite(source, target, 'generation_config.json', lambda g: g)
    rewrite(source, target, 'tokenizer.json', cut_tokenizer)
    rewrite(source, target, 'tokenizer_config.json', lambda g: g)
    with open(os.path.join(source, 'chat_template.jinja'), 'rb') as f, \
            open(os.path.join(target, 'chat_template.jinja'), 'wb') as g:
        g.write(f.read())


if __name__ == '__main__':
    main(*sys.argv[1:])
