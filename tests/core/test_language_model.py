"""Language models: tiny ones of several architectures made here, and the one whose weights a package ships."""

from importlib.util import find_spec

import pytest
import torch
import transformers

from mvnb.models import language

TOKENS = [*"abcdefghij ", "ab", "<end>"]
SIZE = {"vocab_size": len(TOKENS), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 12, "eos_token_id": 12, "pad_token_id": 12}
without_weights = pytest.mark.skipif(not all(map(find_spec, language._PACKAGES)), reason="the extra llm is not installed")
KINDS = ("Llama", "Mistral", "Qwen2", "Phi3", "Gemma2")


def save(folder, kind="Llama", **options):
    """A random model of this architecture as Hugging Face saves it, with a tokenizer of thirteen tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZE, initializer_range=0.5, **options)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    vocabulary = {t.replace(" ", "Ġ"): i for i, t in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return language.load_language_model(str(save(tmp_path_factory.mktemp(request.param), request.param)))


def logits(model, tokens):
    """Of the last place, one row without padding or cache."""
    with torch.inference_mode():
        return model.model(torch.tensor([tokens])).logits[0, -1]


def test_text_becomes_tokens_and_back(model):
    assert model.encode("abba c") == [11, 1, 0, 10, 2] and model.decode([11, 10, 2]) == "ab c"
    assert model.n_parameters == sum({id(w): w.numel() for w in model.model.parameters()}.values())


def test_scores_are_log_probabilities_of_the_first_token(model):
    questions = ["ab", "cde ", "f", "jihgf", "a"]
    expected = torch.stack([logits(model, model.encode("abj" + q)).log_softmax(-1)[[2, 8]] for q in questions])
    for batch in (1, 2, 16):  # in any company, with a context that is read once
        assert torch.allclose(model.answer_scores("abj", questions, ["c", "ia"], batch), expected, atol=1e-4)
    alone = model.answer_scores("", questions, ["c", "ia"])
    assert torch.allclose(alone[0], logits(model, model.encode("ab")).log_softmax(-1)[[2, 8]], atol=1e-4)
    assert not torch.allclose(alone, expected, atol=1e-2)
    with pytest.raises(ValueError, match="first token"):
        model.answer_scores("", questions, ["ca", "c"])
    with pytest.raises(ValueError, match="at least one question"):
        model.answer_scores("", [], ["a", "c"])
    for questions, answers in ((["a", ""], ["a", "c"]), (["a"], ["a", ""])):
        with pytest.raises(ValueError, match="expected answers and questions of at least one token, got ''"):
            model.answer_scores("abj", questions, answers)


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2"])
def test_scores_of_a_model_that_sees_a_window_only(tmp_path, kind):
    model = language.load_language_model(str(save(tmp_path, kind, sliding_window=3)))
    questions = ["ab", "cde ", "f"]
    expected = torch.stack([logits(model, model.encode("abjcd" + q)).log_softmax(-1)[[2, 8]] for q in questions])
    assert torch.allclose(model.answer_scores("abjcd", questions, ["c", "ia"]), expected, atol=1e-4)


def test_attention_is_causal_and_padding_at_the_end_changes_nothing(model):
    maps = model.attention(torch.tensor([[3, 0, 11, 5, 7], [3, 0, 11, 12, 12]]))
    assert maps.shape == (2, 4, 5, 5) and maps.dtype == torch.float32
    assert torch.allclose(maps.sum(-1), torch.ones(2, 4, 5), atol=1e-5)
    assert not maps.triu(1).any()
    assert torch.allclose(maps[0, :, :3, :3], maps[1, :, :3, :3], atol=1e-5)
    first = model.attention(torch.tensor([[3, 0, 11]]), 0)
    assert not torch.allclose(first, maps[:1, :, :3, :3], atol=1e-3)
    assert model.model.config._attn_implementation != "eager" or "Gemma" in type(model.model).__name__


def test_attention_of_a_layer_is_the_softmax_of_its_queries_and_keys(tmp_path):
    """Layer 0 of a Llama: queries and keys of the normed embeddings, rotated by their places."""
    model = language.load_language_model(str(save(tmp_path)))
    tokens = torch.tensor([[3, 0, 11, 5]])
    net = model.model.model
    with torch.inference_mode():
        h = net.layers[0].input_layernorm(net.embed_tokens(tokens))[0]
        attend = net.layers[0].self_attn
        q, k = (proj(h).unflatten(-1, (-1, 4)) for proj in (attend.q_proj, attend.k_proj))
    angle = torch.arange(4)[:, None, None] * 10000.0 ** -torch.tensor([0.0, 0.5])

    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    q, k = turn(q), turn(k).repeat_interleave(2, 1)
    scores = torch.einsum("ihc,jhc->hij", q, k) / 2
    expected = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf).softmax(-1)
    assert torch.allclose(model.attention(tokens, 0)[0], expected, atol=1e-5)


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        language.load_language_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    with pytest.raises(ValueError, match="cannot be read as a causal language model") as caught:
        language.load_language_model(str(tmp_path))
    assert "\n" not in str(caught.value)
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"x\.gguf cannot be read"):
        language.load_language_model(str(tmp_path / "x.gguf"))
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        language.load_language_model(str(tmp_path / "absent"))
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="the extra llm"):
        language.load_language_model()


@without_weights
def test_smollm2_gives_the_logits_of_the_file_that_the_package_ships():
    """Reference: transformers 5.23.0 reading that GGUF file itself, float32."""
    model = language.load_language_model()
    assert model.name == language.SMOLLM2 and model.n_parameters == 134_515_008
    tokens = model.encode("The capital of France is")
    assert tokens == [504, 3575, 282, 4649, 314]
    last = logits(model, tokens)
    assert model.decode([int(last.argmax())]) == " Paris"
    assert torch.allclose(last[:5], torch.tensor([1.6136, -11.8719, -7.9444, -9.3469, -10.0852]), atol=2e-3)
    text = "sentence: it 's a charming and often affecting journey 1234\nThe answer is positive.\n\n"
    expected = "28205 42 357 637 99 253 26597 284 1129 7053 3444 216 33 34 35 36 198 504 2988 314 2731 30 1116"
    assert model.encode(text) == [int(token) for token in expected.split()]


@without_weights
def test_the_unpacked_copy_is_made_once_and_whole(tmp_path, monkeypatch):
    made = []

    def read(path, dtype):
        made.append(path.suffix)
        folder = save(tmp_path / "tiny")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        model.config.quantization_config = {"quant_method": "gguf"}
        return model, transformers.AutoTokenizer.from_pretrained(folder)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(language, "_read", read)
    folder = language._smollm2()
    assert language._smollm2() == folder and made == [".gguf"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    monkeypatch.undo()
    assert language.load_language_model(str(folder)).encode("ab") == [11]
