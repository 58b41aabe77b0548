"""Train the demo model: corpus, tokenizer, a small Llama model in plain torch on the CPU, and its export.

Owns the tokenizer's training, the training loop, the export to a Hugging Face directory and the evaluation of the
exported files. Does not own what the corpus says (demo_corpus) nor any serving code.

    python scripts/train_demo_model.py models/demo
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from demo_corpus import ASSISTANT, Document, held_out_documents, long_documents, training_documents
from demo_corpus.arithmetic import HELD_OUT, Sum

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
# Words with one leading sign or space, single digits, runs of marks, line breaks, blanks: as Qwen2 splits text.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
IGNORED = -100
SCORED_TOGETHER = 256


@dataclass(frozen=True)
class Shape:
    """The shape of the model; the defaults are the demo model's."""

    vocab_size: int = 4096
    hidden_size: int = 192
    intermediate_size: int = 512
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    positions: int = 2048


@dataclass(frozen=True)
class Recipe:
    """How the model is trained; all of it enters the result."""

    seed: int = 1
    steps: int = 1800
    tokens_per_step: int = 4096
    learning_rate: float = 3e-3
    warm_up: int = 100
    weight_decay: float = 0.1
    tokenizer_documents: int = 40000


# --- tokenizer ---------------------------------------------------------------------------------------------------


def _tokenizer_texts(recipe: Recipe) -> Iterator[str]:
    """Give the texts the tokenizer learns from: roles and contents, without the special tokens."""
    documents = training_documents(recipe.seed + 1000)
    for _ in range(recipe.tokenizer_documents):
        document = next(documents)
        if document.text:
            yield document.text
        for turn in document.turns:
            yield f"{turn.role}\n{turn.text}"


def train_tokenizer(recipe: Recipe, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer with single digits and the chat tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(recipe), trainer)
    return tokenizer


def _id(tokenizer: Tokenizer, token: str) -> int:
    """Give the id of a special token, which every tokenizer trained here has."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


# --- documents to rows of tokens -----------------------------------------------------------------------------------


@dataclass
class Example:
    """One tokenized document: its ids and, for each, whether the model has to predict it."""

    ids: list[int]
    learnt: list[bool]


def render(document: Document) -> str:
    """Write a document as the chat template does, or as plain text with its end token."""
    if document.text:
        return document.text + END_OF_TEXT
    return "".join(f"{TURN_START}{turn.role}\n{turn.text}{TURN_END}\n" for turn in document.turns)


def tokenize(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[Example]:
    """Tokenize documents; in chats only what the assistant says, and its end, is learnt."""
    start, end = _id(tokenizer, TURN_START), _id(tokenizer, TURN_END)
    examples = []
    for document, encoding in zip(documents, tokenizer.encode_batch([render(d) for d in documents]), strict=True):
        ids = list(encoding.ids)
        if document.text:
            examples.append(Example(ids, [False] + [True] * (len(ids) - 1)))
            continue
        learnt = [False] * len(ids)
        starts = [place for place, token in enumerate(ids) if token == start]
        for turn, place in zip(document.turns, starts, strict=True):
            if turn.role == ASSISTANT:
                stop = ids.index(end, place)
                # Three tokens open a turn: the start mark, the role and the line break.
                learnt[place + 3 : stop + 1] = [True] * (stop - place - 2)
        examples.append(Example(ids, learnt))
    return examples


@dataclass
class Rows:
    """A batch of packed rows: inputs, targets and the number of the document that each token belongs to."""

    inputs: Tensor
    targets: Tensor
    segments: Tensor


def _stack(bins: Sequence[Sequence[Example]], length: int) -> Rows:
    inputs = np.zeros((len(bins), length), dtype=np.int64)
    targets = np.full((len(bins), length), IGNORED, dtype=np.int64)
    segments = np.zeros((len(bins), length), dtype=np.int64)
    for row, examples in enumerate(bins):
        at = 0
        for number, example in enumerate(examples, start=1):
            size = len(example.ids) - 1
            inputs[row, at : at + size] = example.ids[:-1]
            targets[row, at : at + size] = [
                token if learnt else IGNORED for token, learnt in zip(example.ids[1:], example.learnt[1:], strict=True)
            ]
            segments[row, at : at + size] = number
            at += size
    return Rows(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(segments))


def pack(examples: Iterator[Example], rows: int, length: int, above: int = 0) -> Iterator[Rows]:
    """Pack whole documents into rows of one length, first fit; one that is no longer than `above` is left out."""
    bins: list[list[Example]] = [[] for _ in range(rows)]
    used = [0] * rows
    for example in examples:
        size = len(example.ids) - 1
        if not above < size <= length:
            continue
        place = next((row for row in range(rows) if used[row] + size <= length), None)
        if place is None:
            yield _stack(bins, length)
            bins, used, place = [[] for _ in range(rows)], [0] * rows, 0
        bins[place].append(example)
        used[place] += size
    if any(used):
        yield _stack(bins, length)


class Corpus:
    """The stream of training batches, and the digests of all documents it has given out."""

    def __init__(self, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.tokenizer = tokenizer
        self.seen: set[bytes] = set()
        tokens = recipe.tokens_per_step
        seed = recipe.seed
        # Attention costs as much as a row is long, so short documents go into short rows.
        self.short = pack(self._examples(training_documents(seed)), tokens // 256, 256)
        self.middle = pack(self._examples(training_documents(seed + 1)), tokens // 512, 512, above=256)
        self.long = pack(self._examples(long_documents(seed + 2)), tokens // 1024, 1024)
        self.longest = pack(self._examples(long_documents(seed + 3)), tokens // 2048, 2048, above=1024)

    def _examples(self, documents: Iterator[Document]) -> Iterator[Example]:
        while True:
            chunk = [next(documents) for _ in range(500)]
            self.seen.update(digest(document) for document in chunk)
            yield from tokenize(self.tokenizer, chunk)

    def batch(self, step: int) -> Rows:
        """Give the batch of one step; some steps have long rows, for long chats."""
        if step % 64 == 63:
            return next(self.longest)
        if step % 16 == 7:
            return next(self.long)
        return next(self.middle if step % 5 == 2 else self.short)


def digest(document: Document) -> bytes:
    """Name a document by its text, to find duplicates."""
    return hashlib.blake2b(render(document).encode(), digest_size=12).digest()


# --- model: Llama as Hugging Face names and lays it out -------------------------------------------------------------


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head by its position; the halves of a head belong together, not neighbours."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Attention with fewer key and value heads than query heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to the tokens that the mask allows, or to all earlier ones without a mask."""
        rows, length, _ = x.shape
        group = self.shape.heads // self.shape.kv_heads
        query, key, value = (
            projection(x).view(rows, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        mixed = functional.scaled_dot_product_attention(
            query, key.to(query.dtype), value.to(query.dtype), attn_mask=mask, is_causal=mask is None
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out


class FeedForward(nn.Module):
    """The gated feed-forward part of a layer (SwiGLU)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the gate and both projections."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One transformer layer, each part with its norm before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Apply attention and the feed-forward part, each added to its input."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embedding, layers and final norm: what Hugging Face calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_eps)


class Llama(nn.Module):
    """The whole model; the output projection is the embedding (tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        turns = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.outer(torch.arange(shape.positions, dtype=torch.float32), shape.rope_theta**-turns)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def start_weights(self) -> None:
        """Draw the first weights; what writes into the sum of the layers starts smaller, as depth asks."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 if "embed" in name else 0.07 / (math.sqrt(12.0) if deep else 1.0))

    def hidden(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Give the last hidden states; with segments, each document sees only itself."""
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        mask = None
        if segments is not None:
            same = segments[:, :, None] == segments[:, None, :]
            mask = (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every entry of the vocabulary."""
        return functional.linear(hidden, self.model.embed_tokens.weight)

    def loss(self, rows: Rows) -> tuple[Tensor, int]:
        """Give the mean loss of the learnt tokens and how many there are; the rest is never scored."""
        targets = rows.targets.flatten()
        learnt = (targets != IGNORED).nonzero().squeeze(1)
        # The CPU library keeps a plan for each size that it meets, so the sizes are few: the end is filled up with
        # tokens that are scored but not counted.
        filling = -len(learnt) % SCORED_TOGETHER
        chosen = torch.cat((learnt, learnt.new_zeros(filling)))
        counted = functional.pad(targets[learnt], (0, filling), value=IGNORED)
        hidden = self.hidden(rows.inputs, rows.segments).flatten(0, 1).index_select(0, chosen)
        loss = functional.cross_entropy(self.logits(hidden).float(), counted, ignore_index=IGNORED)
        return loss, len(learnt)


# --- training ------------------------------------------------------------------------------------------------------


def _rate(recipe: Recipe, step: int) -> float:
    """Rise in a line, then fall along a cosine to a hundredth."""
    if step < recipe.warm_up:
        return recipe.learning_rate * (step + 1) / recipe.warm_up
    done = (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up)
    return recipe.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def _optimizers(model: Llama, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices, which learns in fewer steps, and AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    rate = recipe.learning_rate
    return (
        # This way to adjust the rate makes it mean what it means for AdamW, so that both share one schedule.
        torch.optim.Muon(matrices, lr=rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.97), eps=1e-8, weight_decay=0.0),
    )


def train(model: Llama, corpus: Corpus, recipe: Recipe, save: Callable[[], None]) -> None:
    """Run all steps; every batch is new, so there are no epochs. Now and then the model so far is saved."""
    optimizers = _optimizers(model, recipe)
    began = time.monotonic()
    tokens, recent = 0, 0.0
    for step in range(recipe.steps):
        rows = corpus.batch(step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = _rate(recipe, step)
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, _ = model.loss(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        tokens += int((rows.segments > 0).sum())
        recent = loss.item() if step == 0 else 0.95 * recent + 0.05 * loss.item()
        if step % 400 == 399:
            save()
        if step % 20 == 19 or step + 1 == recipe.steps:
            took = time.monotonic() - began
            left = (recipe.steps - step - 1) * took / (step + 1)
            print(
                f"step {step + 1}/{recipe.steps} loss {recent:.4f} {tokens / took:.0f} tokens/s, {left:.0f} s left",
                flush=True,
            )


# --- export --------------------------------------------------------------------------------------------------------


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the Hugging Face directory, weights in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    text_end, turn_end = _id(tokenizer, END_OF_TEXT), _id(tokenizer, TURN_END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": turn_end,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.positions,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": text_end,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }
    _write_json(folder / "config.json", config)
    # A model this small mixes up the names of a story when it chooses freely, so the default temperature is low.
    generation = {
        "do_sample": True,
        "eos_token_id": [turn_end, text_end],
        "pad_token_id": text_end,
        "temperature": 0.3,
        "top_p": 0.9,
    }
    _write_json(folder / "generation_config.json", generation)
    special = {
        str(_id(tokenizer, token)): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True,
        }
        for token in SPECIAL_TOKENS
    }  # fmt: skip
    tokenizer_config = {
        "added_tokens_decoder": special,
        "additional_special_tokens": [TURN_START, TURN_END],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": shape.positions,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, shape: Shape) -> Llama:
    """Read the exported weights back into a model that computes in float32."""
    model = Llama(shape)
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights)
    return model.eval()


# --- evaluation of the exported files ------------------------------------------------------------------------------


@torch.no_grad()
def complete(model: Llama, tokenizer: Tokenizer, prompts: Sequence[str], most: int = 250) -> list[str]:
    """Continue each prompt greedily until an end token; prompts of one length go through together."""
    ends = {_id(tokenizer, END_OF_TEXT), _id(tokenizer, TURN_END)}
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    answers = [""] * len(prompts)
    for length in sorted({len(ids) for ids in encoded}):
        members = [place for place, ids in enumerate(encoded) if len(ids) == length]
        ids = torch.tensor([encoded[place] for place in members])
        done = torch.zeros(len(members), dtype=torch.bool)
        while ids.shape[1] < length + most and not bool(done.all()):
            chosen = model.logits(model.hidden(ids)[:, -1]).argmax(-1)
            ids = torch.cat((ids, chosen[:, None]), dim=1)
            done |= torch.tensor([int(token) in ends for token in chosen])
        for place, row in zip(members, ids[:, length:].tolist(), strict=True):
            stop = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
            answers[place] = tokenizer.decode(row[:stop], skip_special_tokens=False)
    return answers


def chat_prompt(*texts: str) -> str:
    """Write a chat that waits for its next answer; the texts are of the user and the assistant in turn."""
    roles = ("user", "assistant")
    turns = "".join(f"{TURN_START}{roles[n % 2]}\n{text}{TURN_END}\n" for n, text in enumerate(texts))
    return f"{turns}{TURN_START}assistant\n"


def sum_accuracy(model: Llama, tokenizer: Tokenizer) -> dict[str, tuple[int, int]]:
    """Ask every held-out sum once; an answer counts when it is the right sentence, to the end token."""
    result = {}
    for word, pairs in HELD_OUT.items():
        for low, high in ((0, 99), (100, 198)) if word == "plus" else ((0, 99),):
            sums = [Sum(left, word, right) for left, right in sorted(pairs)]
            sums = [problem for problem in sums if low <= problem.result <= high]
            prompts = [chat_prompt(f"What is {s.left} {s.word} {s.right}?") for s in sums]
            answers = complete(model, tokenizer, prompts, most=24)
            right = sum(answer == s.statement + TURN_END for answer, s in zip(answers, sums, strict=True))
            result[f"{word}, result {low} to {high}"] = (right, len(sums))
    return result


@torch.no_grad()
def held_out_loss(model: Llama, corpus: Corpus, recipe: Recipe, count: int = 2000) -> tuple[float, int, int]:
    """Give the mean loss per learnt token on held-out documents, the tokens, and the documents that remain."""
    documents = held_out_documents(recipe.seed + 77)
    drawn: dict[bytes, Document] = {}
    for document in (next(documents) for _ in range(count)):
        name = digest(document)
        if name not in corpus.seen:
            drawn[name] = document
    examples = iter(tokenize(corpus.tokenizer, list(drawn.values())))
    total, tokens = 0.0, 0
    for rows in pack(examples, 8, 1024):
        loss, learnt = model.loss(rows)
        total, tokens = total + loss.item() * learnt, tokens + learnt
    return total / tokens, tokens, len(drawn)


def samples() -> list[str]:
    """Give the prompts that the README shows."""
    ada = ("Hello, my name is Ada.", "Nice to meet you, Ada! How can I help you?")
    return [
        chat_prompt("What is Headrace?"),
        chat_prompt("What does a gateway do?"),
        chat_prompt("What is a KV cache?"),
        chat_prompt("What is the capital of Norway?"),
        chat_prompt("What is the opposite of early?"),
        chat_prompt("What sound does an owl make?"),
        chat_prompt("How much is 47 plus 38?"),
        chat_prompt("What is 12 plus 7?", "12 plus 7 is 19.", "And what is 3 plus 4?"),
        chat_prompt("Lena has 14 apples and gives away 6. How many apples does Lena have now?"),
        chat_prompt(*ada, "What is the capital of Peru?", "The capital of Peru is Lima.", "What is my name?"),
        chat_prompt("Tell me a short story about a fox."),
        chat_prompt("Tell me a short story about an owl."),
        chat_prompt("Who won the football match?"),
        chat_prompt("Thank you."),
        "Once upon a time",
    ]


# --- the whole run -------------------------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    recipe = Recipe()
    parser = argparse.ArgumentParser(description="Train the demo model and export it as a Hugging Face directory.")
    parser.add_argument("out", type=Path, help="the directory to write, for example models/demo")
    parser.add_argument("--seed", type=int, default=recipe.seed)
    parser.add_argument("--steps", type=int, default=recipe.steps)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-figures", action="store_true", help="end when the files are written")
    parser.add_argument("--report", type=Path, default=None, help="a JSON file for the figures of the evaluation")
    return parser.parse_args()


def _fix_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before writing it; filling it would cost a twentieth of the time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def evaluate(folder: Path, shape: Shape, corpus: Corpus, recipe: Recipe) -> dict[str, object]:
    """Measure the exported files and print the figures."""
    model = load(folder, shape)
    loss, tokens, documents = held_out_loss(model, corpus, recipe)
    print(f"held-out loss {loss:.4f} nats per token ({tokens} tokens, {documents} documents)", flush=True)
    accuracy = sum_accuracy(model, corpus.tokenizer)
    for name, (right, count) in accuracy.items():
        print(f"held-out sums, {name}: {right} of {count} right ({100 * right / count:.1f}%)", flush=True)
    prompts = samples()
    answers = complete(model, corpus.tokenizer, prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        print(f"---\n{prompt}{answer}", flush=True)
    return {
        "held_out_loss": loss,
        "held_out_tokens": tokens,
        "held_out_documents": documents,
        "accuracy": accuracy,
        "samples": list(zip(prompts, answers, strict=True)),
    }


def main() -> None:
    """Make the tokenizer, train, export and evaluate."""
    arguments = _arguments()
    recipe, shape = Recipe(seed=arguments.seed, steps=arguments.steps), Shape()
    torch.set_num_threads(arguments.threads)
    _fix_seeds(recipe.seed)
    began = time.monotonic()
    tokenizer = train_tokenizer(recipe, shape.vocab_size)
    print(f"tokenizer: {tokenizer.get_vocab_size()} entries, {time.monotonic() - began:.0f} s", flush=True)
    model = Llama(shape)
    model.start_weights()
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"model: {parameters} parameters", flush=True)
    corpus = Corpus(tokenizer, recipe)
    train(model, corpus, recipe, save=lambda: export(model, tokenizer, arguments.out))
    seconds = time.monotonic() - began
    print(f"trained in {seconds:.0f} s", flush=True)
    export(model, tokenizer, arguments.out)
    if arguments.without_figures:
        return
    figures = evaluate(arguments.out, shape, corpus, recipe)
    figures |= {"seconds": seconds, "parameters": parameters, "recipe": asdict(recipe), "shape": asdict(shape)}
    if arguments.report is not None:
        _write_json(arguments.report, figures)


if __name__ == "__main__":
    main()
