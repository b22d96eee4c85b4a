"""What fine-tuned weights were made for. Travels beside them as `hpd.json`; decoding otherwise is refused.

Plain files and JSON: nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hpd_core import object_store
from hpd_core.checkpoint import ADAPTER_CONFIG
from hpd_core.model_spec import ModelSpec, Prompting
from hpd_core.settings import DecodeSettings, Layout, SettingsError, Visibility
from hpd_core.spec import DecoderSpec, fingerprint
from hpd_core.template import PromptTemplate

FILE = "hpd.json"
#: Lies beside the weights too and is about them: no part of what they are. See confidence.py.
CALIBRATION = "calibration.json"
_FORMAT = 1

#: The wording for fine-tuned models: what training teaches need not be said in every prompt, and absent is the bare
#: terminator, which the prefill's logits decide.
COMPACT = PromptTemplate(
    system="Copy product attributes from the text.",
    instruction="Attributes:\n{attributes}\n\n",
    before_document="Product:\n",
    after_document="",
    absent="",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How weights were trained and therefore want to be decoded.

    base_model: source of the model that was trained. decoder: `hpd`, or `ar` for the autoregressive control, whose
    layout, visibility, max_value_tokens and document_block bind nobody. rank: of the adapter, 0 where all weights were
    trained. training: data, hyper-parameters, seeds and scores, for people. notice: terms that whoever loads them is
    told; it decides nothing, hence neither `repr`, which training fingerprints, nor `content_hash` has it.
    """

    base_model: str
    settings: DecodeSettings
    template: PromptTemplate = COMPACT
    prompting: Prompting = Prompting.CHAT
    decoder: str = "hpd"
    rank: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    notice: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.decoder not in ("hpd", "ar"):
            raise SettingsError(f"decoder {self.decoder!r}: fine-tuning knows 'hpd' and 'ar'")
        object.__setattr__(self, "prompting", Prompting(self.prompting))

    @property
    def template_hash(self) -> str:
        return template_hash(self.template, self.prompting)

    def write(self, folder: Path) -> None:
        """Writes `hpd.json` into `folder`."""
        facts = {
            "format": _FORMAT,
            "base_model": self.base_model,
            "decoder": self.decoder,
            "layout": self.settings.layout,
            "visibility": self.settings.visibility,
            "max_value_tokens": self.settings.max_value_tokens,
            "document_block": self.settings.document_block,
            "template_hash": self.template_hash,
            "template": self.template.as_dict(),
            "prompting": self.prompting,
            "rank": self.rank,
            "training": dict(self.training),
        } | ({"notice": self.notice} if self.notice else {})
        (folder / FILE).write_bytes(_as_bytes(facts))

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Raises SettingsError naming the file where it is missing, unreadable or contradicts itself."""
        path = folder / FILE
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            if facts["format"] != _FORMAT:
                raise SettingsError(f"{path}: format {facts['format']}; this version reads {_FORMAT}")
            recipe = cls(
                base_model=facts["base_model"],
                settings=DecodeSettings(
                    layout=Layout(facts["layout"]),
                    visibility=Visibility(facts["visibility"]),
                    max_value_tokens=facts["max_value_tokens"],
                    document_block=facts.get("document_block", 1),
                ),
                template=PromptTemplate(**facts["template"]),
                prompting=Prompting(facts["prompting"]),
                decoder=facts["decoder"],
                rank=facts["rank"],
                training=facts["training"],
                notice=facts.get("notice", ""),
            )
        except FileNotFoundError:
            raise SettingsError(f"{folder}: no {FILE}, which says how its weights were trained") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{path}: {type(error).__name__}: {error}") from error
        if facts["template_hash"] != recipe.template_hash:
            raise SettingsError(f"{path}: its template was edited and is no longer the one that was trained")
        if not isinstance(recipe.notice, str):
            raise SettingsError(f"{path}: notice is {recipe.notice!r}: must be a text")
        return recipe


def template_hash(template: PromptTemplate, prompting: Prompting) -> str:
    """16 hex digits that change with any word of the prompt."""
    return fingerprint({"template": template.as_dict(), "prompting": prompting})


def folder_of(adapter: str) -> Path:
    """Folder of an adapter: a path, or `resource:<Python package>/<folder>` for one that ships in a package."""
    if adapter.startswith("resource:"):
        package, _, inside = adapter.removeprefix("resource:").partition("/")
        try:
            path = Path(str(resources.files(package))) / inside
        except ModuleNotFoundError:
            raise SettingsError(f"adapter {adapter}: no Python package {package!r}") from None
    else:
        path = Path(adapter).expanduser()
    if not path.is_dir():
        raise SettingsError(f"adapter {adapter}: no folder {path}")
    return path


def recipe_of(model: ModelSpec) -> Recipe | None:
    """What the model's adapter, or its fully fine-tuned directory, was trained for; None for a model as published and
    for an adapter of another tool (`notice_of` says so)."""
    folder = beside_weights(model)
    is_ours = (folder / FILE).is_file() or (model.adapter and not (folder / ADAPTER_CONFIG).is_file())
    return Recipe.read(folder) if is_ours else None


def beside_weights(model: ModelSpec) -> Path:
    """Folder of what lies with the model's adapter, or with its weights: recipe, calibration. It need not exist."""
    if model.adapter:
        return folder_of(model.adapter)
    if object_store.is_remote(model.source):
        return object_store.beside(model.source, (FILE, CALIBRATION))
    return Path(model.source).expanduser()


def notice_of(model: ModelSpec) -> str:
    """What whoever loads the model is told: its spec's notice and that of its fine-tuned weights; "" for most."""
    recipe, others = recipe_of(model), ""
    if model.adapter and recipe is None:
        folder = folder_of(model.adapter)
        others = (
            f"adapter {folder} has no {FILE} to say how it wants to be asked: it is decoded with this job's own prompt "
            f"and layout. It was trained on {_base_of(folder) or 'a base that it does not name'}"
        )
    return joined_notices([model.notice, recipe.notice if recipe else others])


def joined_notices(notices: Iterable[str]) -> str:
    """All lines of several notices, each once, in order."""
    lines = [line.strip() for notice in notices for line in notice.splitlines()]
    return "\n".join(dict.fromkeys(line for line in lines if line))


def adapter_spec(folder: str) -> ModelSpec | None:
    """The model that an adapter's folder stands for: its base with the adapter; None for any other folder."""
    path = Path(folder).expanduser()
    if not (path / ADAPTER_CONFIG).is_file():
        return None
    if (path / FILE).is_file():
        recipe = Recipe.read(path)
        return ModelSpec(recipe.base_model, name=folder, prompting=recipe.prompting, adapter=folder)
    base = _base_of(path)
    if not base:
        raise SettingsError(f"{path / ADAPTER_CONFIG} names no base_model_name_or_path: give the base as model.source")
    return ModelSpec(base, name=folder, adapter=folder)


def _base_of(folder: Path) -> str:
    """The base model that peft's configuration of an adapter names, "" where it names none."""
    try:
        facts = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        return str(facts.get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(f"{folder / ADAPTER_CONFIG}: {type(error).__name__}: {error}") from error


def decoder_spec(
    model: ModelSpec, settings: DecodeSettings | None = None, template: PromptTemplate | None = None
) -> DecoderSpec:
    """A spec whose missing parts are what the model was fine-tuned for, else its own wording, else the default."""
    recipe = recipe_of(model)
    if recipe is None:
        return DecoderSpec(model, settings or DecodeSettings(), template or model.template or PromptTemplate())
    return DecoderSpec(
        replace(model, prompting=recipe.prompting), settings or recipe.settings, template or recipe.template
    )


def check(spec: DecoderSpec) -> None:
    """Raises SettingsError where `spec` decodes fine-tuned weights in another way than they were trained for."""
    recipe = recipe_of(spec.model)
    if recipe is None:
        return
    pairs = [("prompt template (hash)", template_hash(spec.template, spec.model.prompting), recipe.template_hash)]
    if recipe.decoder == "hpd":
        for name in ("layout", "visibility", "max_value_tokens", "document_block"):
            pairs.append((name, str(getattr(spec.settings, name)), str(getattr(recipe.settings, name))))
    if spec.model.adapter:
        pairs.append(("base model", spec.model.source, recipe.base_model))
    wrong = [f"{name} is {asked}, trained with {trained}" for name, asked, trained in pairs if asked != trained]
    if wrong:
        where = spec.model.adapter or spec.model.source
        raise SettingsError(f"{where}: fine-tuned weights give wrong answers decoded otherwise: {'; '.join(wrong)}")


def content_hash(adapter: str) -> str:
    """16 hex digits over names and bytes of the adapter's files, those apart that do not decide what is decoded: cards,
    a notice, and the calibration, whose numbers stand in a job's fingerprint where it is used."""
    digest = hashlib.sha256()
    folder = folder_of(adapter)
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != ".md" and p.name != CALIBRATION):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(deciding_bytes(path)).digest())
    return digest.hexdigest()[:16]


def deciding_bytes(path: Path) -> bytes:
    """Content of a file that lies with weights; a recipe as it would be without a notice."""
    content = path.read_bytes()
    if path.name != FILE:
        return content
    try:
        facts = json.loads(content)
    except ValueError:
        return content  # whoever reads it as a recipe says what is wrong
    if not isinstance(facts, dict) or "notice" not in facts:
        return content
    return _as_bytes({name: value for name, value in facts.items() if name != "notice"})


def _as_bytes(facts: Mapping[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()
