"""The applications of docs/browser.md, as a person uses them."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from PIL import Image
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "browser"
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 3, 64, 64] image) => (float[1, 3] scores) { scores = ReduceMean <axes = [2, 3], keepdims = 0> (image) }"""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that does not log."""

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


@pytest.fixture
def address(tmp_path: Path, node_modules: Path) -> Iterator[str]:
    """The address of a folder with the pages, a model of the first one's interface, and the npm packages."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "node_modules").symlink_to(node_modules)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def test_the_page_of_the_documentation_shows_these_files() -> None:
    text = (EXAMPLES.parents[1] / "browser.md").read_text()
    assert [name for name in ("index.html", "transformers.html") if (EXAMPLES / name).read_text() not in text] == []


def test_the_colour_of_a_picture(address: str, browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(address)
    expect(page.locator("#answer")).to_have_text("choose a picture", timeout=60_000)
    for colour in ("blue", "green"):
        picture = tmp_path / f"{colour}.png"
        Image.new("RGB", (90, 50), colour).save(picture)
        page.locator("#file").set_input_files(picture)
        expect(page.locator("#answer")).to_have_text(colour, timeout=60_000)
    page.close()


@pytest.mark.campaign
def test_two_sentences_with_transformers_js(address: str, browser: Browser, tmp_path: Path, node_modules: Path) -> None:
    """The page shows the similarity that PyTorch computes."""
    import torch
    from tokenizers import BertWordPieceTokenizer

    import sardonyx
    import zoo

    if not (node_modules / "@huggingface").is_dir():
        pytest.skip("no transformers.js; make transformers-js installs it")
    words = BertWordPieceTokenizer()
    words.train_from_iterator(["a dog and a cat"], vocab_size=100, min_frequency=1)
    words.save_model(str(tmp_path))
    folder = tmp_path / "models" / "bert"
    library = zoo.transformers()
    tokens = library.BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt"))
    tokens.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = library.BertModel(library.BertConfig(vocab_size=tokens.vocab_size, **sizes)).eval()
    model.save_pretrained(folder)
    (folder / "onnx").mkdir()
    sardonyx.export(f"hf:{folder}", output=tmp_path / "raw.onnx", dynamic="auto")
    sardonyx.optimize(tmp_path / "raw.onnx", folder / "onnx" / "model.onnx", target="ort")
    with torch.no_grad():
        inputs = tokens(["a dog", "a cat"], return_tensors="pt")
        one, other = torch.nn.functional.normalize(model(**inputs).last_hidden_state.mean(1), dim=-1)
    page = browser.new_page()
    page.goto(f"{address}transformers.html")
    expect(page.locator("#answer")).to_have_text(f"{float(one @ other):.4f}", timeout=60_000)
    page.close()
