"""The built-in set of models: small but complete networks of every family, from configs and seeded random weights.

They allow a study without any model at hand, and give tables for kinds of networks. No other code knows them: each is
exported to a file, and the file is studied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from sardonyx.errors import UsageError
from sardonyx.fleet.storage import Contents, Store
from sardonyx.records.study import Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject

MODELS = "models"  # the folder they are exported to, inside the folder of the study
_EXPORTER: Literal["torchscript"] = "torchscript"  # its graphs leave the most to optimize
_BATCH_AND_LENGTH = {0: "batch", 1: "length"}
_WIDTHS = "hidden_size=128,num_hidden_layers=4,num_attention_heads=4,intermediate_size=512"


class Recipe(Struct, frozen=True):
    """How one model is exported."""

    name: str
    family: str
    source: str  # for `export`; "handmade:NAME" is a factory of `handmade.py`
    inputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])


def _text(name: str, family: str, source: str, *more: str) -> Recipe:
    """Return the recipe of a model over tokens, with dynamic batch and length."""
    names = ("input_ids", "attention_mask", *more)
    return Recipe(
        name,
        family,
        source,
        tuple(f"{input_name}=int64[2,16]" for input_name in names),
        dict.fromkeys(names, _BATCH_AND_LENGTH),
    )


def _image(name: str, family: str, source: str) -> Recipe:
    return Recipe(name, family, source, ("pixel_values=float32[1,3,96,96]",))


SMALL = (
    _text("bert", "encoder", f"hf-config:BertModel?{_WIDTHS},vocab_size=1000", "token_type_ids"),
    _text(
        "distilbert",
        "encoder",
        "hf-config:DistilBertModel?dim=128,n_layers=4,n_heads=4,hidden_dim=512,vocab_size=1000",
    ),
    _text(
        "gpt2",
        "decoder",
        "hf-config:GPT2LMHeadModel?n_embd=128,n_layer=4,n_head=4,vocab_size=1000,use_cache=False,bos_token_id=1,"
        "eos_token_id=2",
    ),
    _text(
        "llama",
        "decoder",
        "hf-config:LlamaForCausalLM?hidden_size=128,intermediate_size=352,num_hidden_layers=4,num_attention_heads=8,"
        "num_key_value_heads=2,vocab_size=1000,use_cache=False",
    ),
    _text(
        "t5-encoder",
        "encoder",
        "hf-config:T5EncoderModel?d_model=128,d_kv=32,d_ff=512,num_layers=4,num_heads=4,vocab_size=1000",
    ),
    Recipe("whisper-encoder", "encoder", "handmade:whisper_encoder", ("input_features=float32[1,80,400]",)),
    _image("vit", "vision-transformer", f"hf-config:ViTModel?{_WIDTHS},image_size=96,patch_size=8"),
    _image("deit", "vision-transformer", f"hf-config:DeiTModel?{_WIDTHS},image_size=96,patch_size=8"),
    _image(
        "mobilevit",
        "hybrid",
        "hf-config:MobileViTModel?hidden_sizes=[48,64,80],neck_hidden_sizes=[16,16,24,32,40,48,160],image_size=96",
    ),
    _image(
        "resnet", "convolutional", "hf-config:ResNetModel?embedding_size=32,hidden_sizes=[64,128,256],depths=[2,2,2]"
    ),
    _image(
        "mobilenet", "convolutional", "hf-config:MobileNetV2Model?depth_multiplier=0.5,image_size=96,tf_padding=False"
    ),
    _image(
        "efficientnet",
        "convolutional",
        "hf-config:EfficientNetModel?width_coefficient=0.5,depth_coefficient=0.5,hidden_dim=640,image_size=96",
    ),
    Recipe("lstm", "recurrent", "handmade:lstm", ("signal=float32[2,32,40]",)),
    Recipe("mlp", "mlp", "handmade:mlp", ("features=float32[2,64]",), {"features": {0: "batch"}}),
)
SETS: Mapping[str, Sequence[Recipe]] = {"small": SMALL}


def file_name(model: str) -> str:
    """Return the name of an exported model in the store of the study."""
    return f"{MODELS}/{model}.onnx"


def recipes(name: str) -> Sequence[Recipe]:
    """Return the recipes of a set.

    Raises:
        UsageError: there is no such set.
    """
    if name not in SETS:
        raise UsageError(f"there is no zoo {name!r}", hint=f"there is {', '.join(SETS)}")
    return SETS[name]


class ZooExport(Experiment):
    """Exports the models of the zoo, in cells like every other experiment, before the study of them begins."""

    name = "export"

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._by_name = {recipe.name: recipe for recipe in recipes}

    def subjects(self, store: Store) -> list[Subject]:
        """Return the subjects that will exist when all recipes are exported."""
        return [self._subject(recipe, store) for recipe in self._by_name.values()]

    def _subject(self, recipe: Recipe, store: Store) -> Subject:
        name = file_name(recipe.name)
        path = store.path(name)
        if path is None:
            return Subject(recipe.name, Path(f"{recipe.name}.onnx"), recipe.family, f"{store.url}/{name}")
        return Subject(recipe.name, path, recipe.family)

    def cells(self, subject: Subject, options: StudyOptions) -> list[Cell]:
        """Return one cell, which exports the model."""
        return [Cell(self.name, subject.name, _EXPORTER, options.only("seed"))]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Export the model to its file."""
        from sardonyx.exporting.export import export  # needs torch, as nothing else in a study does
        from sardonyx.records.input_specs import DynamicRequest, parse_inputs

        recipe = self._by_name[subject.name]
        source = recipe.source
        if source.startswith("handmade:"):
            source = source.replace("handmade", str(Path(__file__).with_name("handmade.py")), 1)
        record = export(
            source,
            parse_inputs(recipe.inputs),
            subject.path,
            exporter=_EXPORTER,
            dynamic=DynamicRequest(False, recipe.dynamic) if recipe.dynamic else None,
            seed=cell.options["seed"],
            threads=1,
            force=True,
        )
        written = Contents.of(subject.path)
        return {
            "bytes": written.size,
            "sha256": written.sha256,
            "nodes": record.counts.nodes,
            "parameters": record.module.parameters,
        }

    def is_there(self, store: Store, subject: Subject, answer: Answer) -> bool:
        """Return whether the exported file still exists, unchanged."""
        return store.matches(file_name(subject.name), Contents(answer.get("bytes", -1), answer.get("sha256", "")))

    def tables(self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]) -> list[Table]:
        """Return no table: an export is not a result."""
        return []
