"""Folders of converted models: every tensor comes back, no file can change unseen, every head's proof is checked."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import anchorhead as ah
from anchorhead.conversion.folder import convert_folder, load_folder
from anchorhead.file.container import digest
from anchorhead.file.folder import record_bytes, record_digest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A module called head, a tied weight, a buffer that is not persistent, and a tensor that is a plain attribute."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Module()
        self.net.first, self.net.act, self.net.head = nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)
        self.again = nn.Linear(4, 6)
        self.again.weight = self.net.first.weight
        self.net.register_buffer("shift", torch.randn(2), persistent=False)
        self.scale = torch.rand(2)

    def forward(self, x):
        net = self.net
        return (net.head(net.act(net.first(x)) + self.again(x)) + net.shift) * self.scale


@pytest.fixture
def saved(tmp_path):
    converted = ah.convert(Net(), inputs=X)
    ah.save_converted(converted, tmp_path / "out")
    return converted, tmp_path / "out"


def rewritten(folder, change):
    """The folder with its record changed and every digest made to fit again."""
    record = json.loads((folder / "anchorhead.json").read_text())
    change(record)
    record["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in record["files"]}
    record["digest"] = record_digest(record)
    (folder / "anchorhead.json").write_bytes(record_bytes(record))


def test_every_tensor_comes_back_whatever_it_is_called(saved):
    converted, folder = saved
    back = ah.load_converted(folder, Net(seed=1))
    assert torch.equal(back(X), converted(X))
    assert back.again.weight is back.net.first.weight
    assert back.report == converted.report
    stored = load_file(folder / "weights.safetensors")
    assert {"net.head.weight", "net.head.bias", "net.shift", "scale"} <= set(stored)
    assert not any(name.startswith("net.act") for name in stored)


class Keeps(Net):
    """Tensors in lists and dictionaries, too."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.rows, self.named = [torch.rand(2), (torch.rand(2),)], {"a": torch.rand(2), "b": [torch.rand(2)]}

    def forward(self, x):
        (first, (second,)), named = self.rows, self.named
        return super().forward(x) * first + second * named["a"] + named["b"][0]


def test_tensors_in_containers_come_back(tmp_path):
    converted = ah.convert(Keeps(), inputs=X)
    ah.save_converted(converted, tmp_path)
    assert torch.equal(ah.load_converted(tmp_path, Keeps(seed=1))(X), converted(X))


def test_a_state_that_a_folder_cannot_hold_is_refused(tmp_path):
    class Extra(Net):
        def get_extra_state(self):
            return {"steps": 3}

    with pytest.raises(ah.InputError, match="get_extra_state"):
        ah.save_converted(ah.convert(Extra(), inputs=X), tmp_path / "out")


class Setting(Net):
    factor = 1.0

    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * super().forward(x)


class OtherForward(Net):
    def forward(self, x):
        return super().forward(x).sin()


def test_what_was_seen_of_one_code_is_not_claimed_of_another(saved, tmp_path):
    _, folder = saved
    with pytest.warns(UserWarning, match="other code"):
        back = ah.load_converted(folder, OtherForward())
    assert not back.report.pure
    assert "NOT watched, since the code or the settings of Net, OtherForward" in str(back.report)
    converted = ah.convert(Setting(), inputs=X)
    ah.save_converted(converted, tmp_path / "setting")
    assert ah.load_converted(tmp_path / "setting", Setting()).report == converted.report
    with pytest.warns(UserWarning, match="Setting"):
        assert not ah.load_converted(tmp_path / "setting", Setting(3.0)).report.watched


def test_trainable_heads_come_back_trainable(tmp_path):
    converted = ah.convert(Net(), inputs=X, trainable=True)
    ah.save_converted(converted, tmp_path)
    back = ah.load_converted(tmp_path, Net(seed=1))
    names = {name for name, p in back.named_parameters() if p.requires_grad}
    assert names == {name for name, p in converted.named_parameters() if p.requires_grad}
    assert any("heads" in name for name in names)
    back(X).sum().backward()
    assert back.net.act.head.constants.grad is not None


@pytest.mark.parametrize("edit", [lambda text: text + b"\n", lambda text: text.replace(b"\n", b"\r\n"),
                                  lambda text: text.replace(b'": ', b'":  ', 1)])  # fmt: skip
def test_a_record_with_other_white_space_is_not_the_one_that_was_saved(saved, edit):
    _, folder = saved
    record = folder / "anchorhead.json"
    record.write_bytes(edit(record.read_bytes()))
    for check in (ah.verify, lambda where: ah.load_converted(where, Net())):
        with pytest.raises(ah.FileError, match="not the file that was saved"):
            check(folder)


def test_a_model_with_other_tensors_is_not_filled(saved):
    class More(Net):
        def __init__(self):
            super().__init__()
            self.more = nn.Linear(2, 2)

    with pytest.raises(ah.FileError, match="do not fit the model"):
        ah.load_converted(saved[1], More())
    other = Net()
    other.net.act = nn.Tanh()
    with pytest.raises(ah.FileError, match="no such activation"):
        ah.load_converted(saved[1], other)
    with pytest.raises(ah.InputError, match="class of yours"):
        ah.load_converted(saved[1])


@pytest.mark.parametrize("name", ["anchorhead.json", "weights.safetensors", "heads/0.safetensors", "README.md"])
def test_no_file_can_be_edited(saved, name):
    data = bytearray((saved[1] / name).read_bytes())
    data[-20] ^= 1
    (saved[1] / name).write_bytes(data)
    for look in (ah.verify, lambda folder: ah.load_converted(folder, Net())):
        with pytest.raises(ah.FileError, match=f"{name}.* is not the file that was saved|not a converted model"):
            look(saved[1])


def test_no_file_can_be_added_or_removed(saved):
    (saved[1] / "model.safetensors").write_bytes(b"")
    with pytest.raises(ah.FileError, match="was not saved with it"):
        ah.load_converted(saved[1], Net())
    (saved[1] / "model.safetensors").unlink()
    (saved[1] / ".gitattributes").write_text("")
    assert ah.verify(saved[1]).level == "proved"
    (saved[1] / "README.md").unlink()
    with pytest.raises(ah.FileError, match=r"README\.md is missing"):
        ah.verify(saved[1])


@pytest.mark.parametrize(
    ("field", "value"), [("error", 1e-300), ("formula", "relu(x)"), ("domain", [-1, 1]), ("rounding", 0.0)]
)
def test_a_report_that_says_more_than_was_proved_is_refuted(saved, field, value):
    rewritten(saved[1], lambda record: record["report"]["replaced"][0].update({field: value}))
    with pytest.raises(ah.VerificationError, match="something else of the heads at net"):
        ah.verify(saved[1])
    assert ah.load_converted(saved[1], Net()).report == saved[0].report  # what is said is what the heads say


def test_bounds_are_computed_from_the_weights_that_are_loaded(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))
    converted = ah.convert(model)
    ah.save_converted(converted, tmp_path)
    weights = load_file(tmp_path / "weights.safetensors")
    weights["2.weight"] = 1024 * weights["2.weight"]
    save_file(weights, tmp_path / "weights.safetensors", metadata={"format": "pt"})
    rewritten(tmp_path, lambda record: None)
    back = ah.load_converted(tmp_path, model)
    assert back.report.replaced[0].output_bound == 1024 * converted.report.replaced[0].output_bound


def test_proofs_of_heads_are_checked_and_not_their_digests(saved):
    from safetensors import safe_open

    path = saved[1] / "heads" / "0.safetensors"
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["anchorhead"])
    tensors = load_file(path)
    tensors["constants"] = tensors["constants"] + 1e-3
    record["digest"] = digest(record, {name: t.numpy().tobytes() for name, t in tensors.items()})
    save_file(tensors, path, metadata={"anchorhead": json.dumps(record, sort_keys=True)})
    rewritten(saved[1], lambda record: None)
    with pytest.raises(ah.VerificationError):
        ah.verify(saved[1])


def test_a_folder_is_verified_without_torch(saved):
    hidden = "".join(f"sys.modules[{n!r}] = None; " for n in ("torch", "numpy", "safetensors", "transformers", "rich"))
    script = f"import sys; {hidden}sys.argv[0] = 'anchorhead'; from anchorhead.__main__ import main; main()"

    def command(*arguments):
        return subprocess.run([sys.executable, "-c", script, "verify", str(saved[1]), *arguments],
                              capture_output=True, text=True, check=False)  # fmt: skip

    done = command()
    assert done.returncode == 0, done.stderr
    assert "net.act, activation: proved: |gelu(x) - model| <= " in done.stdout
    found = json.loads(command("--json").stdout)
    assert (found["verified"], list(found["heads"])) == (True, ["net.act"])
    assert found["heads"]["net.act"]["activation"]["level"] == "proved"


def test_the_card_holds_the_report(saved):
    text = (saved[1] / "README.md").read_text(encoding="utf-8")
    assert str(saved[0].report) in text
    assert "load_converted" in text


def test_the_command_shows_the_report_of_a_folder(saved):
    def command(*more):
        asked = [sys.executable, "-m", "anchorhead", "show", str(saved[1]), *more]
        return subprocess.run(asked, capture_output=True, text=True, check=False)

    assert command().stdout.strip() == str(saved[0].report)
    assert json.loads(command("--json").stdout) == saved[0].report.as_dict()
    refused = command("--plot", "figure.png")
    assert refused.returncode == 2
    assert "load_converted" in refused.stderr


@pytest.mark.parametrize(
    ("model", "pure", "said"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.GELU()), False, "1 activation is attention now"),
        (nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Tanh()), False, "2 activations are attention now"),
        (nn.Sequential(nn.LayerNorm(4), nn.GELU()), True, "1 activation and 1 norm are attention now; at most"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)),
            False,
            "1 activation is attention now, in a feed-forward block with 4 neurons; at most",
        ),
        (
            nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 4)),
            True,
            "1 activation and 1 norm are attention now, 1 of the activations in feed-forward blocks with 4 neurons; at",
        ),
        (nn.Linear(4, 4), False, "nothing was converted, since no activation was found; tol 1e-06"),
        (nn.LayerNorm(4), True, "1 norm is attention now; at most"),
    ],
)
def test_a_report_counts_in_plain_words(model, pure, said):
    assert str(ah.convert(model, pure=pure).report).startswith(said)


def test_heads_that_did_not_run_are_counted_in_the_first_line():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.smooth = nn.Linear(4, 4), nn.GELU(), False

        def forward(self, x):
            h = self.first(x)
            return self.act(h) if self.smooth else torch.tanh(h) if self.training else torch.relu(h)

    report = ah.convert(Branches(), inputs=torch.randn(3, 4)).report
    assert str(report).startswith("3 activations are attention now (2 did not run); at most")
    assert report.unused == ["act", "tanh"]


def test_folders_of_others_are_left_alone_and_earlier_conversions_are_replaced(saved, tmp_path):
    ah.save_converted(saved[0], saved[1])
    assert ah.verify(saved[1]).level == "proved"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    with pytest.raises(ah.FileError, match="give an empty folder"):
        ah.save_converted(saved[0], tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes"]


def test_heads_that_were_changed_after_their_proof_are_not_saved(tmp_path):
    converted = ah.convert(Net(), inputs=X)
    with torch.no_grad():
        converted.net.act.head.constants += 1e-3
    with pytest.raises(ah.InputError, match="changed after their proof"):
        ah.save_converted(converted, tmp_path)


IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def language_model(transformers):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=1)
    return transformers.GPT2LMHeadModel(config).eval()


def test_the_transformers_library_does_not_load_a_model_without_its_heads(transformers, language_model, tmp_path):
    converted = ah.convert(language_model)
    ah.save_converted(converted, tmp_path / "out")
    for kind in (transformers.AutoModel, transformers.AutoModelForCausalLM, transformers.GPT2LMHeadModel):
        with pytest.raises(OSError, match="no file named model"):
            kind.from_pretrained(tmp_path / "out")
    back = ah.load_converted(tmp_path / "out")
    assert torch.equal(back(IDS).logits, converted(IDS).logits)
    assert back.lm_head.weight is back.transformer.wte.weight
    for model in (converted, back, converted.transformer):
        with pytest.raises(ah.InputError, match="save_converted"):
            model.save_pretrained(tmp_path / "without")
    assert not (tmp_path / "without").exists()
    language_model.save_pretrained(tmp_path / "original")  # which it still does


def test_sentence_transformers_do_not_load_a_model_without_its_heads(transformers, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=60
    )
    ah.save_converted(ah.convert(transformers.BertModel(config)), tmp_path)
    with pytest.raises(OSError, match=r"safetensors|config|tokenizer"):
        library.SentenceTransformer(str(tmp_path), local_files_only=True)


def test_a_folder_of_safetensors_is_converted_with_its_tokenizer(language_model, tmp_path):
    language_model.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "vocab.json").write_text("{}")
    report = convert_folder(tmp_path / "in", tmp_path / "out", 1e-6, None)
    assert report.watched
    assert (tmp_path / "out" / "vocab.json").read_text() == "{}"
    assert ah.verify(tmp_path / "out").level == "proved"
    assert (load_folder(tmp_path / "out")(IDS).logits - language_model(IDS).logits).abs().max() < 1e-5
    shutil.copytree(tmp_path / "in", tmp_path / "bin", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ah.FileError, match="other formats can hold code"):
        load_folder(tmp_path / "bin")


def test_gguf_files_are_read(transformers, tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from gguf_file import small_llama, write_gguf

    model = small_llama()
    write_gguf(model, tmp_path / "model.gguf")
    found = load_folder(tmp_path / "model.gguf")
    ids = IDS % 40
    assert (found(ids).logits - model(ids).logits).abs().max() < 1e-4
    report = convert_folder(tmp_path / "model.gguf", tmp_path / "out", 1e-4, None)
    assert len(report.blocks) == 1
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ah.FileError, match="cannot be loaded"):
        load_folder(tmp_path / "broken.gguf")


def test_a_class_of_another_library_is_asked_for(transformers, tmp_path):
    from anchorhead.conversion.pretrained import from_config

    with pytest.raises(ah.FileError, match=r"load_converted\(path, SentenceTransformer\(original\)\)"):
        from_config(tmp_path, "SentenceTransformer")


def test_what_is_asked_wrongly_is_refused_before_the_weights_are_loaded(tmp_path):
    (tmp_path / "model").mkdir()  # with nothing in it that could be loaded
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    source = tmp_path / "model"
    with pytest.raises(ah.InputError, match="tol"):
        convert_folder(source, tmp_path / "out", -1.0, progress=False)
    with pytest.raises(ah.FileError, match=r"holds 'mine\.txt'"):
        convert_folder(source, tmp_path / "full", None, progress=False)
    with pytest.raises(ah.FileError, match="is a file"):
        convert_folder(source, tmp_path / "full" / "mine.txt", None, progress=False)
    with pytest.raises(ah.FileError, match="nope does not exist"):
        convert_folder(tmp_path / "nope", tmp_path / "out", None, progress=False)


def test_the_folder_of_a_converted_model_is_no_file_and_says_what_reads_it(saved):
    with pytest.raises(ah.FileError, match=r"README\.md.*anchorhead verify.*load_converted"):
        ah.load(saved[1])


def test_weights_of_the_original_load_around_the_heads():
    def block():
        return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU())

    converted, other, x = ah.convert(block(), pure=True), block(), torch.randn(5, 3)
    nn.init.normal_(other[1].weight)
    missed = converted.load_state_dict(other.state_dict(), strict=False)
    assert not missed.unexpected_keys
    assert all(".heads." in name for name in missed.missing_keys)
    assert (converted(x) - other(x)).abs().max() < 1e-5
    assert all(place.module.proved for place in converted.report.places)


def test_a_report_begins_with_what_it_comes_to():
    gate = nn.Sequential(nn.Linear(4, 4), nn.GLU(), nn.LayerNorm(2))
    pure, left = (ah.convert(gate, pure=pure).report for pure in (True, False))
    assert "\nlargest proved error: " in str(pure)
    assert " for partners up to 1, rounding apart, at 1; of norms " in str(pure).splitlines()[1]
    assert str(pure).splitlines()[2].startswith("pure: ")
    last = "NOT pure: other nonlinear operations remain in LayerNorm, 1 place"
    assert str(left).splitlines()[2] == last
    assert last in left._repr_html_()
    converted = ah.convert(gate)
    converted[2] = nn.Identity()
    assert "whether it is pure is not known" in str(converted.report).splitlines()[2]
