"""Language models: a tiny one made here, in both formats, and the one whose weights a package ships."""

import json
import struct

import pytest
import torch
from torch.nn import functional

from mvnb.models import language

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
LAYERS, HEADS, KV, DIM, WIDTH = 2, 4, 2, 16, 24
TOKENS = [*"abcdefghij ", "ab", "<end>"]


def weights(seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = {"q": (DIM, DIM), "k": (DIM // 2, DIM), "v": (DIM // 2, DIM), "o": (DIM, DIM)}
    out = {"model.embed_tokens": torch.randn(len(TOKENS), DIM, generator=g), "model.norm": torch.rand(DIM, generator=g) + 0.5}
    for layer in range(LAYERS):
        parts = {f"self_attn.{k}_proj": torch.randn(s, generator=g) / 4 for k, s in shapes.items()}
        parts |= {f"mlp.{k}_proj": torch.randn(WIDTH, DIM, generator=g) / 4 for k in ("gate", "up")}
        parts |= {"mlp.down_proj": torch.randn(DIM, WIDTH, generator=g) / 4}
        parts |= {k: torch.rand(DIM, generator=g) + 0.5 for k in ("input_layernorm", "post_attention_layernorm")}
        out |= {f"model.layers.{layer}.{k}": v for k, v in parts.items()}
    return {f"{k}.weight": v for k, v in out.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama as Hugging Face saves it."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    place = tmp_path_factory.mktemp("llama")
    vocabulary = {t.replace(" ", "Ġ"): i for i, t in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(place / "tokenizer.json"))
    save_file(weights(), place / "model.safetensors")
    config = {"model_type": "llama", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV}
    config |= {"rms_norm_eps": 1e-5, "rope_theta": 100.0}
    (place / "config.json").write_text(json.dumps(config))
    return place


def gguf_file(path):
    """The same model in GGUF, float32, with queries and keys in that format's order."""
    from mvnb.models.language_files import _NAMES, _TOP

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def array(kind, values, pack):
        return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(map(pack, values))

    def integer(value):
        return struct.pack("<II", 4, value)

    tokens = [t.replace(" ", "Ġ") for t in TOKENS]
    fields = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "general.name": struct.pack("<I", 8) + text("tiny"),
        "llama.block_count": integer(LAYERS),
        "llama.attention.head_count": integer(HEADS),
        "llama.attention.head_count_kv": integer(KV),
        "llama.rope.freq_base": struct.pack("<If", 6, 100.0),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", 6, 1e-5),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
        "tokenizer.ggml.tokens": array(8, tokens, text),
        "tokenizer.ggml.token_type": array(5, [1] * (len(tokens) - 1) + [3], lambda v: struct.pack("<i", v)),
        "tokenizer.ggml.merges": array(8, ["a b"], text),
    }
    names = {v: k for k, v in _NAMES.items()} | {v: k for k, v in _TOP.items()}
    index, data, offset = b"", b"", 0
    stored = weights()
    for name, weight in stored.items():
        short = name.removeprefix("model.").removesuffix(".weight")
        layer, _, rest = short.removeprefix("layers.").partition(".") if short.startswith("layers.") else ("", "", short)
        if rest in ("self_attn.q_proj", "self_attn.k_proj"):
            n = HEADS if "q_proj" in rest else KV
            weight = weight.view(n, 2, -1, DIM).transpose(1, 2).reshape(weight.shape)
        key = (f"blk.{layer}." if layer else "") + names[rest] + ".weight"
        shape = weight.shape[::-1]
        index += text(key) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", 0, offset)
        raw = weight.contiguous().numpy().tobytes()
        raw += bytes(-len(raw) % 32)
        data, offset = data + raw, offset + len(raw)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(stored), len(fields))
    head += b"".join(text(k) + v for k, v in fields.items()) + index
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return language.load_language_model(str(folder))


def by_hand(tokens):
    """The same network, one token and one head at a time."""
    w = {k.removeprefix("model.").removesuffix(".weight"): v.double() for k, v in weights().items()}
    size = DIM // HEADS

    def norm(x, name):
        return x / (x.square().mean() + 1e-5).sqrt() * w[name]

    def turn(x, place):
        half = size // 2
        out = x.clone()
        for i in range(half):
            angle = torch.tensor(place * 100.0 ** (-2 * i / size), dtype=torch.float64)
            a, b = x[i], x[i + half]
            out[i], out[i + half] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return out

    h = [w["embed_tokens"][t] for t in tokens]
    for layer in range(LAYERS):
        p = f"layers.{layer}."
        z = [norm(x, p + "input_layernorm") for x in h]
        new = []
        for i in range(len(h)):
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // KV)
                q = turn((w[p + "self_attn.q_proj"] @ z[i])[head * size : (head + 1) * size], i)
                rows = slice(group * size, (group + 1) * size)
                k = torch.stack([turn((w[p + "self_attn.k_proj"] @ z[j])[rows], j) for j in range(i + 1)])
                v = torch.stack([(w[p + "self_attn.v_proj"] @ z[j])[rows] for j in range(i + 1)])
                heads.append((k @ q / size**0.5).softmax(0) @ v)
            new.append(h[i] + w[p + "self_attn.o_proj"] @ torch.cat(heads))
        h = []
        for x in new:
            y = norm(x, p + "post_attention_layernorm")
            gate = functional.silu(w[p + "mlp.gate_proj"] @ y) * (w[p + "mlp.up_proj"] @ y)
            h.append(x + w[p + "mlp.down_proj"] @ gate)
    return torch.stack([w["embed_tokens"] @ norm(x, "norm") for x in h])


def test_forward_pass_is_the_one_written_out(model):
    tokens = [3, 0, 11, 5, 5, 10, 2]
    logits = model.logits(model.read(torch.tensor([tokens])).hidden)[0]
    assert torch.allclose(logits.double(), by_hand(tokens), atol=1e-4)
    some = model.logits(model.read(torch.tensor([tokens])).hidden, [4, 1])[0]
    assert torch.allclose(some, logits[:, [4, 1]], atol=1e-5)


def test_both_formats_give_the_same_model(model, tmp_path):
    other = language.LanguageModel(language.read_gguf(gguf_file(tmp_path / "tiny.gguf")))
    tokens = torch.tensor([[3, 0, 11, 5]])
    assert torch.allclose(model.read(tokens).hidden, other.read(tokens).hidden, atol=1e-5)
    assert model.n_parameters == other.n_parameters == sum(v.numel() for v in weights().values())
    for one in (model, other):
        assert one.encode("abba c") == [11, 1, 0, 10, 2] and one.decode([11, 10, 2]) == "ab c"


def test_a_context_read_once_serves_all_rows_and_padding_changes_nothing(model):
    whole = torch.tensor([[3, 0, 11, 5, 7, 2], [3, 0, 11, 5, 1, 1]])
    past = model.read(whole[:1, :4]).cache
    reading = model.read(whole[:, 4:], past, watch=(-1, 0))
    assert torch.allclose(reading.hidden, model.read(whole).hidden[:, 4:], atol=1e-5)
    assert set(reading.attention) == {0, 1} and reading.attention[1].shape == (2, HEADS, 2, 6)
    assert torch.allclose(reading.attention[0].sum(-1), torch.ones(2, HEADS, 2))
    full = model.read(whole, watch=(0,)).attention[0]
    assert torch.allclose(full[:, :, 4:], reading.attention[0], atol=1e-5)
    assert torch.allclose(model.read(whole[:, :5]).hidden, model.read(whole).hidden[:, :5], atol=1e-5)


def test_scores_are_log_probabilities_of_the_first_token(model):
    questions = ["ab", "cde ", "f"]
    scores = model.answer_scores("abj", questions, ["c", "ia"], batch=2)
    for row, question in zip(scores, questions):
        logits = model.logits(model.read(torch.tensor([model.encode("abj") + model.encode(question)])).hidden)
        assert torch.allclose(row, logits[0, -1].log_softmax(-1)[[2, 8]], atol=1e-4)
    alone = model.answer_scores("", questions, ["c", "ia"])
    assert not torch.allclose(scores, alone, atol=1e-2)
    with pytest.raises(ValueError, match="first token"):
        model.answer_scores("", questions, ["ca", "c"])


def test_what_cannot_be_loaded_is_told_in_one_line(folder, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="must be a Llama"):
        language.load_language_model(str(tmp_path))
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a GGUF"):
        language.load_language_model(str(tmp_path / "x.gguf"))
    with pytest.raises(language.LanguageModelMissing, match="no language model at"):
        language.load_language_model(str(tmp_path / "absent"))
    (folder_without := tmp_path / "bare").mkdir()
    (folder_without / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(FileNotFoundError, match="safetensors"):
        language.load_language_model(str(folder_without))
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    with pytest.raises(language.LanguageModelMissing, match="the extra llm"):
        language.load_language_model()


def test_smollm2_gives_the_logits_that_transformers_gives():
    """Reference: transformers 5.23.0 with the same file, float32."""
    if language.missing_packages():
        pytest.skip("the extra llm is not installed")
    model = language.load_language_model()
    assert model.n_parameters == 134_515_008
    tokens = model.encode("The capital of France is")
    assert tokens == [504, 3575, 282, 4649, 314]
    logits = model.logits(model.read(torch.tensor([tokens])).hidden)[0, -1]
    assert model.decode([int(logits.argmax())]) == " Paris"
    expected = torch.tensor([1.6136, -11.8719, -7.9444, -9.3469, -10.0852])
    assert torch.allclose(logits[:5], expected, atol=2e-3)
    digits = [
        28205,
        42,
        357,
        637,
        99,
        253,
        26597,
        284,
        1129,
        7053,
        3444,
        216,
        33,
        34,
        35,
        36,
        198,
        504,
        2988,
        314,
        2731,
        30,
        1116,
    ]
    text = "sentence: it 's a charming and often affecting journey 1234\nThe answer is positive.\n\n"
    assert model.encode(text) == digits
