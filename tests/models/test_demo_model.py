"""What the committed demo model and the scripts that make models promise.

Owns the checks on the files in models/demo, on the corpus grammar and on the random models. Does not own training,
which takes far too long for a test, nor how the server runs the model.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch")

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
STATEMENT = re.compile(r"\b(\d+) (plus|minus|times) (\d+) is (\d+)\.")
CHAT = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 12 plus 7?"},
    {"role": "assistant", "content": "12 plus 7 is 19."},
    {"role": "user", "content": "And what is 3 plus 4?"},
]


def script(name: str) -> Any:
    """Import a module of the scripts folder, which is not a package."""
    folder = str(ROOT / "scripts")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def config() -> dict[str, Any]:
    """Read the demo model's config."""
    return dict(json.loads((DEMO / "config.json").read_text(encoding="utf-8")))


def texts(documents: Any, count: int) -> list[str]:
    """Write the first documents of a stream as training sees them."""
    render = script("train_demo_model").render
    return [render(document) for document in itertools.islice(documents, count)]


def greedy(model: Any, tokenizer: Any, chat: list[dict[str, str]]) -> str:
    """Answer a chat greedily with transformers, end token included."""
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=60)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=False))


def test_the_demo_folder_has_every_file_and_at_most_eight_megabytes() -> None:
    assert all((DEMO / name).is_file() for name in (*FILES, "README.md"))
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) <= 8_000_000


def test_the_demo_config_is_a_small_llama_with_grouped_heads() -> None:
    demo = config()
    assert demo["architectures"] == ["LlamaForCausalLM"]
    assert demo["model_type"] == "llama"
    assert demo["tie_word_embeddings"] is True
    assert demo["num_attention_heads"] >= 2 * demo["num_key_value_heads"]
    assert demo["num_attention_heads"] % demo["num_key_value_heads"] == 0
    assert demo["vocab_size"] % 64 == 0
    assert demo["max_position_embeddings"] == 2048


def test_the_end_tokens_of_config_generation_config_and_tokenizer_agree() -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    turn_end, text_end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    generation = json.loads((DEMO / "generation_config.json").read_text(encoding="utf-8"))
    assert config()["eos_token_id"] == turn_end
    assert generation["eos_token_id"] == [turn_end, text_end]
    assert config()["pad_token_id"] == generation["pad_token_id"] == text_end


def test_the_demo_weights_are_bf16_and_between_one_and_four_million() -> None:
    weights = load_file(DEMO / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert 1_000_000 <= sum(weight.numel() for weight in weights.values()) <= 4_000_000
    assert weights["model.embed_tokens.weight"].shape == (config()["vocab_size"], config()["hidden_size"])


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time there was a fox named Mira.",
        "12 plus 7 is 19.\n\n  Two blanks, a tab\tand a dash \u2013 fine.",
        "Gr\u00fc\u00dfe, \u4f60\u597d, \u0645\u0631\u062d\u0628\u0627 and \U0001f98a!",
        "",
    ],
)
def test_the_demo_tokenizer_gives_back_any_text_as_it_was(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_demo_tokenizer_splits_numbers_into_digits_and_knows_the_chat_tokens() -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    assert tokenizer.encode("2048").tokens == ["2", "0", "4", "8"]
    assert tokenizer.encode("<|im_start|>user").tokens == ["<|im_start|>", "user"]
    assert 4000 <= tokenizer.get_vocab_size() <= config()["vocab_size"]


def test_the_chat_template_writes_a_chat_as_training_did() -> None:
    corpus, trainer = script("demo_corpus"), script("train_demo_model")
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    turns = tuple(corpus.Turn(turn["role"], turn["content"]) for turn in CHAT)
    trained = trainer.render(corpus.Document("chat", turns))
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == trained
    waiting = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert waiting == trained + "<|im_start|>assistant\n"


def test_transformers_gives_the_logits_of_the_model_that_was_trained() -> None:
    trainer = script("train_demo_model")
    ids = torch.arange(3, 203).reshape(2, 100) * 7 % 4096
    reference = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    own = trainer.load(DEMO, trainer.Shape())
    with torch.no_grad():
        difference = (own.logits(own.hidden(ids)) - reference(ids).logits).abs().max()
    assert difference < 1e-4


def test_the_demo_model_answers_in_a_sentence_and_stops_by_itself() -> None:
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    assert greedy(model, tokenizer, CHAT) == "3 plus 4 is 7.<|im_end|>"
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    assert greedy(model, tokenizer, asked) == "The capital of France is Paris.<|im_end|>"


def test_the_corpus_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    corpus = script("demo_corpus")
    first = texts(corpus.training_documents(5), 200)
    assert first == texts(corpus.training_documents(5), 200)
    assert first != texts(corpus.training_documents(6), 200)


def test_every_sum_that_the_corpus_states_is_true() -> None:
    corpus = script("demo_corpus")
    streams = (corpus.training_documents(7), corpus.held_out_documents(7), corpus.long_documents(7))
    stated = [match for stream in streams for text in texts(stream, 700) for match in STATEMENT.findall(text)]
    assert len(stated) > 1000
    for left, word, right, result in stated:
        value = {"plus": int(left) + int(right), "minus": int(left) - int(right), "times": int(left) * int(right)}
        assert value[word] == int(result), (left, word, right, result)


def test_no_sum_of_the_training_corpus_is_on_the_held_out_side() -> None:
    corpus, arithmetic = script("demo_corpus"), script("demo_corpus.arithmetic")
    for text in texts(corpus.training_documents(8), 1500):
        for left, word, right, _ in STATEMENT.findall(text):
            assert not arithmetic.is_held_out(arithmetic.Sum(int(left), word, int(right)))


def test_a_random_model_is_the_same_for_the_same_seed_and_loads_in_transformers(tmp_path: Path) -> None:
    maker = script("make_random_model")
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        maker.write_model(maker.SHAPES["tiny"], tmp_path / name, seed, DEMO)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again", "other")}
    assert weights["first"] == weights["again"] != weights["other"]
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7, 8]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
    assert len(set(out[0, 4:].tolist())) > 2


def test_the_large_random_shapes_have_the_parameters_of_the_models_they_copy() -> None:
    maker = script("make_random_model")
    counts = {}
    for name in ("135m", "0.5b"):
        shape = maker.SHAPES[name]
        narrow = shape.kv_heads * shape.head_dim
        layer = 2 * shape.hidden * (shape.hidden + narrow) + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
        layer += (shape.hidden + 2 * narrow) * shape.biased
        counts[name] = shape.vocab * shape.hidden + shape.layers * layer + shape.hidden
    assert counts == {"135m": 134_515_008, "0.5b": 494_032_768}
