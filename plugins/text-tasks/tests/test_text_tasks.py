"""Tasks of text: real data, counts, accelerations, and losses equal to Trainer's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from accel_bench_text_tasks.data import catalogues
from accel_bench_text_tasks.tasks.masked_lm import MaskedLMOptions
from accel_bench_text_tasks.tasks.masked_lm_impl import Masking
from accel_bench_text_tasks.tasks.pair_losses_impl import InfoNCE
from accel_bench_text_tasks.tasks.pair_tasks import EmbeddingOptions, Seq2SeqLM
from builtin.tasks.catalogue_files import write_catalogue
from kit import shrunk
from torch.nn import functional
from torch.utils.data import IterableDataset

from accel_bench import Batch, Options, Result, Run, Status, TokenCounts
from accel_bench.analysis.checks.audit import audit
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.modeling.losses import repeated_rows
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.manager import activate
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import Stack
from accel_bench.testing import make_run, run_scenario

# PEFT asks transformers by a name that is being replaced.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

FEW_STEPS = {"measure.warmup": 1, "measure.steps": 7, "measure.phase_steps": 0}

WORDS = "open close file folder page line word print save edit view help search find copy".split()


@pytest.fixture(scope="module")
def locale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic catalogues of French, German and Spanish."""
    root = tmp_path_factory.mktemp("locale")
    texts = [f"{a} the {b} and {c}" for a in WORDS for b in WORDS for c in WORDS[:5]]
    for lang, ending in (("fr", "er"), ("de", "en"), ("es", "ar")):
        messages = {text: " ".join(word + ending for word in text.split()) for text in texts}
        write_catalogue(root, lang, "program", {"": "Content-Type: text/plain", **messages})
    return root


def losses(result: Result) -> list[float]:
    """Losses of a run, from its first step on."""
    window = result.ranks[0].window
    assert window is not None, result.log_tail
    return [sample.loss for sample in (*window.warmup, *window.samples)]


@pytest.mark.parametrize("name", ["masked-lm", "embedding", "translation"])
def test_a_twin_trains_is_counted_and_loses_nothing_by_checkpointing(
    name: str, locale: Path
) -> None:
    settings: dict[str, Any] = dict(FEW_STEPS)
    if name == "translation":
        settings["data.path"] = str(locale)
    results = run_scenario(f"{name}-cpu", settings=settings)
    plain, again = results["baseline"], results["activation-checkpointing"]
    for result in (plain, again):
        assert result.status.completed, result.reasons
        assert not audit(result)
        workload = result.ranks[0].workload
        assert workload is not None
        assert workload.flops_method == "observed"
        assert result.ranks[0].effective.gradient_flow is not None
    assert losses(again) == pytest.approx(losses(plain), rel=1e-5)
    assert np.mean(losses(plain)[-3:]) < np.mean(losses(plain)[:3])


# Held against transformers' own Trainer.

SMALL: dict[str, dict[str, Any]] = {
    "masked-lm": {
        "model": {"id": "bert-base-uncased"},
        "data": {"sequence_length": 16, "vocab_size": 1024, "lengths": {"median": 10}},
    },
    "embedding": {
        "model": {"id": "e5-small-v2"},
        "data": {"use": "synthetic-pairs", "sequence_length": 12, "samples": 64},
    },
    "seq2seq-lm": {
        "model": {"id": "t5-small"},
        "data": {"use": "synthetic-pairs", "sequence_length": 12, "samples": 64},
    },
}
"""A tiny scenario of each task."""


def built(task: str, folder: Path, **changes: Any) -> tuple[Run, ActivePlugins]:
    """A run of a tiny scenario, built up to its loss and batches."""
    scenario = copy.deepcopy(SMALL[task]) | {"task": task, "train": {"micro_batch_size": 4}}
    scenario["model"]["overrides"] = shrunk(scenario["model"]["id"])
    run = make_run(folder, scenario | changes)
    run.cache_folder.mkdir(exist_ok=True)
    active = activate(run.scenario, Stack(name="baseline"), allow_torch=True)
    run.task = next(one.instance for one in active.plugins if one.slot == "task")
    run.dataset = active.require("load_data", run=run)
    run.model = run.unwrapped_model = active.require("load_model", run=run)
    run.task.adjust_model(run.model)
    run.loss = active.require("build_loss", run=run)
    run.batches = active.require("build_batches", run=run)
    return run, active


class Stream(IterableDataset):
    """Ready batches, in their order."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(batch.inputs) for batch in self._batches)


class Recording(transformers.Trainer):
    """Trainer that records unrounded losses."""

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Note the loss."""
        loss = super().training_step(*arguments, **named)
        self.seen = [*getattr(self, "seen", []), loss.item()]
        return loss


class RecordingPairs(Recording):
    """Trainer with an explicit InfoNCE loss, pair by pair."""

    def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
        """Return the mean over the pairs."""
        hidden = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].bool()
        rows = [
            functional.normalize(h[m].mean(0), dim=0) for h, m in zip(hidden, mask, strict=True)
        ]
        first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        found = []
        for number, one in enumerate(first):
            scores = torch.stack([one @ other for other in second]) / 0.01
            found.append(scores.logsumexp(0) - scores[number])
        return torch.stack(found).mean()


@pytest.mark.parametrize("task", sorted(SMALL))
def test_the_losses_are_those_of_trainer_on_the_same_batches(task: str, tmp_path: Path) -> None:
    run, _ = built(task, tmp_path)
    batches = list(islice(run.batches, 4))
    theirs = copy.deepcopy(run.model)
    ours = []
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3)
    for batch in batches:
        loss = run.loss(run.model, batch.inputs, batch.supervised_in_step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ours.append(loss.item())
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=len(batches), per_device_train_batch_size=1,
        use_cpu=True, save_strategy="no", logging_strategy="no", report_to="none",
        disable_tqdm=True, max_grad_norm=0.0, dataloader_pin_memory=False,
        remove_unused_columns=False,
    )  # fmt: skip
    adam = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    constant = torch.optim.lr_scheduler.LambdaLR(adam, lambda _: 1.0)
    kind = RecordingPairs if task == "embedding" else Recording
    trainer = kind(
        model=theirs, args=arguments, train_dataset=Stream(batches),
        data_collator=lambda rows: rows[0], optimizers=(adam, constant),
    )  # fmt: skip
    trainer.train()
    assert trainer.seen == pytest.approx(ours, rel=1e-5)
    assert len(ours) == 4


@pytest.mark.parametrize("task", sorted(SMALL))
def test_what_is_counted_is_what_the_batches_hold(task: str, tmp_path: Path) -> None:
    run, _ = built(task, tmp_path)
    for batch in islice(run.batches, 3):
        held = run.task.held(batch)
        for kind in held._fields:
            least, most = getattr(held, kind)
            assert least <= getattr(batch.tokens, kind) <= most
        assert held.supervised == (batch.tokens.supervised,) * 2


def test_tokens_of_both_texts_are_counted_and_those_of_the_second_supervised() -> None:
    inputs = {
        "input_ids": torch.tensor([[5, 6, 7, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "labels": torch.tensor([[8, 9, -100]]),
    }
    held = Seq2SeqLM(Options()).held(Batch(inputs, 1, TokenCounts(7, 5, 2), 2))
    assert held == ((7, 7), (5, 5), (2, 2))


# Accelerations.

STACKS = {
    "baseline": [],
    "compiled": [{"use": "torch-compile", "backend": "aot_eager"}],
    "trainer": {"set": {"engine.use": "hf-trainer"}},
    "accumulated": {"set": {"train.micro_batch_size": 2, "train.gradient_accumulation": 2}},
}


@pytest.mark.box
@pytest.mark.parametrize(
    ("task", "adapter"),
    [
        ("masked-lm", "lora"),
        ("seq2seq-lm", "none"),
        pytest.param("masked-lm", "none", marks=pytest.mark.release),
        pytest.param("seq2seq-lm", "lora", marks=pytest.mark.release),
    ],
)
def test_accelerations_leave_the_loss_as_it_is(task: str, adapter: str, tmp_path: Path) -> None:
    scenario = copy.deepcopy(SMALL[task]) | {"name": "tiny", "task": task, "adapter": adapter}
    scenario["model"]["overrides"] = shrunk(scenario["model"]["id"])
    scenario |= {
        "train": {"micro_batch_size": 4},
        "resources": {"device": "cpu"},
        "measure": {"warmup": 1, "steps": 2, "rounds": 1, "phase_steps": 0},
        "stacks": STACKS,
    }
    (tmp_path / "tiny.json").write_text(json.dumps(scenario))
    path = tmp_path / "tiny.yaml"
    path.write_text((tmp_path / "tiny.json").read_text())
    results = run_scenario(path)
    expected = losses(results["baseline"])
    for name, result in results.items():
        assert result.status.completed, (name, result.reasons)
        assert losses(result) == pytest.approx(expected, rel=1e-5), name


def test_a_model_of_another_family_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("task: masked-lm\nmodel: {id: tiny-llama-cpu}\nresources: {device: cpu}\n")
    (result,) = run_scenario(path).values()
    assert result.status is Status.SKIPPED
    assert result.reasons == (
        "masked-lm: trains models of text-encoder, and tiny-llama-cpu is one of text-generation",
    )


@pytest.mark.parametrize(
    ("task", "data", "wrong"),
    [("embedding", "synthetic", "reads pairs"), ("masked-lm", "synthetic-pairs", "holds pairs")],
)
def test_data_of_another_form_is_refused(task: str, data: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=wrong):
        built(task, tmp_path, data={"use": data, "vocab_size": 1024, "sequence_length": 8})


# Masking.


def test_masks_are_those_of_bert_and_their_place_alone_decides() -> None:
    scenario = SimpleNamespace(data=SimpleNamespace(seed=3), model=SimpleNamespace(id="any"))
    dataset = SimpleNamespace(vocab_size=500)
    run: Any = SimpleNamespace(dataset=dataset, scenario=scenario, unwrapped_model=None)
    masking = Masking(run, MaskedLMOptions())
    tokens = np.random.default_rng(0).integers(500, size=20_000)
    inputs, labels = masking(tokens, place=7)
    chosen = labels != -100
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (labels[chosen] == tokens[chosen]).all()
    assert (inputs[~chosen] == tokens[~chosen]).all()
    assert (inputs[chosen] == 500).mean() == pytest.approx(0.8, abs=0.03)
    assert (inputs[chosen] == tokens[chosen]).mean() == pytest.approx(0.1, abs=0.03)
    again, _ = Masking(run, MaskedLMOptions())(tokens, place=7)
    other, _ = masking(tokens, place=8)
    assert (again == inputs).all()
    assert not (other == inputs).all()
    assert (masking(tokens[:1], place=9)[1] != -100).all()


def test_special_tokens_are_neither_predicted_nor_put_in_the_place_of_others(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.add_special_tokens(["<|pad|>", "[MASK]"])
    special = [tokenizer.token_to_id(name) for name in ("<|pad|>", "[MASK]")]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "tokenizer.json"
    dataset = SimpleNamespace(vocab_size=4, tokenizer_path=path)
    scenario = SimpleNamespace(data=SimpleNamespace(seed=3), model=SimpleNamespace(id="any"))
    run: Any = SimpleNamespace(dataset=dataset, scenario=scenario, unwrapped_model=None)
    masking = Masking(run, MaskedLMOptions(masked=0.9, replaced=0.0, random=1.0))
    tokens = np.array([0, 1, special[0]] * 200)
    inputs, labels = masking(tokens, place=0)
    assert (labels[2::3] == -100).all()
    assert (inputs[2::3] == special[0]).all()
    assert not np.isin(np.delete(inputs, np.s_[2::3]), special).any()
    assert (labels != -100).sum() > 300
    assert (masking(tokens[2:3], place=1)[1] != -100).all()


def test_evidence_of_masks_is_of_what_is_trained_on_alone(tmp_path: Path) -> None:
    data = {"use": "synthetic", **SMALL["masked-lm"]["data"], "held_out": 8}
    run, active = built("masked-lm", tmp_path, data=data, evaluate={"batches": 2})
    shown = [report for _, report in run.evidence_callbacks]
    list(islice(run.batches, 3))
    assert len(list(active.require("build_evaluation_batches", run=run))) == 2
    (masked,) = (found for report in shown if "masked_share" in (found := report()))
    assert masked["samples"] == 3 * 4


# InfoNCE.


def infonce(hidden: torch.Tensor, ids: torch.Tensor, **options: Any) -> tuple[float, InfoNCE]:
    """Loss of one-token texts' hidden states, and its function."""
    loss = InfoNCE(EmbeddingOptions(**options))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    output = SimpleNamespace(last_hidden_state=hidden)
    return float(loss(lambda **_: output, inputs, 1)), loss


def test_cosines_of_bfloat16_states_are_those_of_float32() -> None:
    hidden = torch.randn(64, 3, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.arange(64 * 3).view(64, 3)
    for pooling in ("mean", "first"):
        exact, _ = infonce(hidden.float(), ids, pooling=pooling)
        assert infonce(hidden, ids, pooling=pooling)[0] == pytest.approx(exact, rel=1e-6)


def test_an_equal_text_is_no_negative() -> None:
    hidden = torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(0))
    # The first and the third pair have the same second text.
    ids = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8], [9, 9], [7, 8]])
    found, loss = infonce(hidden, ids, temperature=0.5)
    vectors = functional.normalize(hidden.mean(1), dim=-1)
    scores = vectors[:3] @ vectors[3:].T / 0.5
    kept = [[0, 1], [0, 1, 2], [1, 2]]
    expected = sum(
        scores[row, columns].logsumexp(0) - scores[row, row] for row, columns in enumerate(kept)
    )
    assert found == pytest.approx(float(expected), rel=1e-5)
    assert loss.evidence()["left_out_in_last_batch"] == 2


def test_a_micro_batch_of_one_stack_alone_is_another_training(tmp_path: Path) -> None:
    path = tmp_path / "stacks.yaml"
    work = {"task": "embedding", **SMALL["embedding"], "resources": {"device": "cpu"}}
    smaller = {"set": {"train.micro_batch_size": 2, "train.gradient_accumulation": 4}}
    train = {"micro_batch_size": 8}
    path.write_text(json.dumps({**work, "train": train, "stacks": {"all": [], "few": smaller}}))
    whole, few = make_plan(read_draft(path), read_machine(), PlanRequest()).planned
    assert whole.skipped == ()
    assert few.skipped[0].startswith("task 'embedding': the loss of a sample depends on its")
    assert "train.gradient_accumulation, train.micro_batch_size of one stack" in few.skipped[0]


def test_wide_rows_are_equal_where_all_of_their_ids_are() -> None:
    ids = torch.randint(0, 50_000, (40, 300), generator=torch.Generator().manual_seed(0))
    ids[7] = ids[3]
    ids[9] = ids[3]
    ids[9, 299] += 1
    assert torch.nonzero(repeated_rows(ids)).tolist() == [[3, 7], [7, 3]]


# Translations.


@pytest.mark.parametrize(
    ("code", "folder"),
    [("fra", "fr"), ("fra_Latn", "fr"), ("fr", "fr"), ("por_BR", "pt_BR"), ("zho", "zh_CN")],
)
def test_a_language_is_found_by_its_codes(code: str, folder: str) -> None:
    assert catalogues.language(code) == folder


def test_catalogues_are_read_without_header_context_and_plurals(tmp_path: Path) -> None:
    messages = {"": "header", "menu\4Open": "Ouvrir", "%d file\0%d files": "%d fichier\0%d fich"}
    write_catalogue(tmp_path, "fr", "it", messages | {"Empty": ""})
    (path,) = catalogues.files("fra", str(tmp_path))
    assert dict(catalogues.messages(path)) == {"Open": "Ouvrir", "%d file": "%d fichier"}
    path.write_bytes(path.read_bytes()[:40])
    assert list(catalogues.messages(path)) == []


def test_two_other_languages_are_joined_by_what_both_translate(
    tmp_path: Path, locale: Path
) -> None:
    data = {"use": "translations", "source_lang": "deu", "target_lang": "fra"}
    data |= {"path": str(locale), "sequence_length": 32, "samples": 100}
    run, _ = built("seq2seq-lm", tmp_path, data=data)
    first, second = run.dataset.pair(0)
    tokenizer = tokenizers.Tokenizer.from_file(str(run.dataset.tokenizer_path))
    texts = [
        tokenizer.decode([*map(int, row)], skip_special_tokens=False) for row in (first, second)
    ]
    assert texts[0].startswith("<deu>")
    assert texts[1].startswith("<fra>")
    stems = [[word[:-2] for word in text.partition(">")[2].split()[:2]] for text in texts]
    assert stems[0] == stems[1]


def test_a_language_without_catalogues_is_skipped_with_the_way_out(locale: Path) -> None:
    settings = {"data.path": str(locale), "data.target_lang": "ita"}
    results = run_scenario("translation-cpu", settings=settings)
    assert {result.status for result in results.values()} == {Status.SKIPPED}
    assert "no translation catalogues of ita" in results["baseline"].reasons[0]
