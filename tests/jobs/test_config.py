"""A job's YAML: what is refused, and that the message names file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpd_core.confidence import ConfidenceRule
from hpd_core.model_spec import Prompting
from hpd_core.recipe import Recipe
from hpd_core.settings import DecodeSettings, Grounding, Layout
from hpd_core.template import PromptTemplate
from pipeline.checked import ConfigError
from pipeline.compose import catalog_reader, compose, load_schemas
from pipeline.config import load_config
from pipeline.job import JobError

BASE = """
input: {path: in}
output: {path: out}
text: {template: "{{ title }}"}
schemas:
  define:
    shoes: {attributes: [Brand, {name: Size, type: integer}]}
  default: shoes
"""


def job_file(folder: Path, text: str = BASE) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("decod: {}", "job.yaml: unknown key 'decod'; did you mean 'decode'?"),
        ("decode: {layot: gaps}", "job.yaml: decode: unknown key 'layot'; did you mean 'layout'?"),
        ("decode: {layout: gasp}", "job.yaml: decode.layout: Input should be 'gaps' or 'branches'"),
        ("decode: {max_slots: 0}", "job.yaml: decode: max_slots is 0: must be at least 1"),
        ("decode: {visibility: causal}", "job.yaml: decode: visibility 'causal' needs layout 'gaps'"),
        ("pool: {cpuz: 1}", "job.yaml: pool: unknown key 'cpuz'; did you mean 'cpus'?"),
        ("pool: {min_size: 2}", "job.yaml: pool: pool size 2..1"),
        ("pool: {cpus: .nan}", "job.yaml: pool: pool: cpus must be positive and gpus not negative, both finite"),
        ("price: {dollars_per_hour: .inf}", "price.dollars_per_hour: Input should be a finite number"),
        ("units: {row: 1}", "job.yaml: units: unknown key 'row'; did you mean 'rows'?"),
        ("run: {max_round: 1}", "job.yaml: run: unknown key 'max_round'; did you mean 'max_rounds'?"),
        ("limits: {max_error_rate: 2}", "job.yaml: limits.max_error_rate: Input should be less than or equal to 1"),
        ("prompt: {xyzzy: 1}", "job.yaml: prompt: unknown key 'xyzzy'; known keys are system, instruction"),
        ("model: smollm-135m", "job.yaml: model: no model 'smollm-135m'"),
        ("model: {name: smollm2-135m, dtyp: float32}", "job.yaml: model: unknown key 'dtyp'; did you mean 'dtype'?"),
        (
            "price: {machine: laptop-3-core}",
            "price.machine: unknown machine 'laptop-3-core'; did you mean 'laptop-2-core'?",
        ),
        ("input: {path: other}", "job.yaml: line 9: key 'input' stands twice"),
        ("price: [", "job.yaml: line "),
        ("confidence: {treshold: 0.5}", "job.yaml: confidence: unknown key 'treshold'; did you mean 'threshold'?"),
        ("confidence: {threshold: auto}", "job.yaml: confidence: threshold 'auto' is that of a calibration"),
        ("confidence: {threshold: yes}", "job.yaml: confidence: threshold is True: must be auto, a mapping"),
        ("confidence: {threshold: {Brand: 70}}", "job.yaml: confidence: threshold of 'Brand' is 70"),
        ("decode: {grounding: on}", "job.yaml: decode.grounding: Input should be 'off'"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path: Path, extra: str, message: str) -> None:
    path = job_file(tmp_path, BASE + extra + "\n")
    with pytest.raises(ConfigError) as caught:
        compose(load_config(path), path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Brand,", "{nam: Brand},", "schemas.define.shoes.attributes.0: unknown key 'nam'; did you mean 'name'?"),
        ("attributes: [", "attribute: [", "schemas.define.shoes: unknown key 'attribute'; did you mean 'attributes'?"),
        ("type: integer", "type: int", "schemas.define.shoes.attributes.1.type: Input should be 'string'"),
        ("Brand,", "'a:b',", "shoes: attribute name 'a:b': must not contain ':'"),
        ("integer}", "integer, values: ['36', L]}", "shoes: attribute 'Size': closed value 'L' cannot be read as int"),
        ("Brand,", "Size,", "schemas.define: schema 'shoes': attributes 'Size' and 'Size' share the name 'Size'"),
        ("default: shoes", "default: shoe", "schemas.default: unknown schema 'shoe'; did you mean 'shoes'?"),
        ("default: shoes", "file: none.yaml", "none.yaml: No such file"),
        ("  default: shoes", "", "nothing says which schema a row gets"),
        ("{{ title }}", "{{ title", "text template: unexpected end"),
        ("input: {path: in}", "", "input.path: no input; set it or give --input"),
        ("output: {path: out}", "", "output.path: no output; set it or give --output"),
        ("input: {path: in}", "input: {path: ['a', ' ']}", "input.path: one of the inputs is an empty text"),
    ],
)
def test_a_wrong_schema_or_text_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in BASE
    path = job_file(tmp_path, BASE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        compose(load_config(path), path)
    assert message in str(caught.value)


def test_all_wrong_keys_are_named_at_once(tmp_path: Path) -> None:
    path = job_file(tmp_path, BASE + "decod: {}\npools: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("decode.layot=gaps", "--set decode.layot=gaps: decode: unknown key 'layot'; did you mean 'layout'?"),
        ("decode.max_slots=0", "--set decode.max_slots=0: decode: max_slots is 0"),
        ("decode.kv_mib=much", "--set decode.kv_mib=much: decode: kv_mib is 'much': must be a whole number or auto"),
        ("nonsense", "--set nonsense: must be written key.key=value"),
        ("text.template.x=1", "--set text.template.x=1: text.template is no section of keys"),
        ("text.template={", "--set text.template={: line 1:"),
    ],
)
def test_a_wrong_override_is_named_as_such(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(job_file(tmp_path), [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output.storge.secret=s3cr3t", "--set output.storge.secret=…: output: unknown key 'storge'"),
        ("output.storage={secret: s3cr3t", "--set output.storage=…: line 1:"),
        ("output.storage.secret.x=s3cr3t", "--set output.storage.secret.x=…: output.storage.secret is no section"),
        ("input=s3cr3t", "--set input=…: input: must be a section of the keys path"),
        ("inputs.storage.secret=s3cr3t", "--set inputs.storage.secret=…: unknown key 'inputs'"),
        ("output.storage.=s3cr3t", "--set output.storage.=…: must be written key.key=value"),
    ],
)
def test_a_wrong_override_does_not_tell_the_keys_of_a_store(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(job_file(tmp_path), ["output.storage.secret=x", override])
    assert message in str(caught.value) and "s3cr3t" not in str(caught.value)


def test_overrides_win_and_are_yaml(tmp_path: Path) -> None:
    overrides = [
        "model=smollm2-135m",
        "decode.layout=gaps",
        "pool.cpus=2",
        "model.dtype=float32",
        "input.path=[a, b]",
        "price.dollars_per_hour=3",
    ]
    path = job_file(tmp_path, BASE + "decode: {max_slots: 7}\n")
    job = compose(load_config(path, overrides), path)

    assert (job.decoder.settings.layout, job.decoder.settings.max_slots) == (Layout.GAPS, 7)
    assert (job.decoder.model.name, job.decoder.model.dtype) == ("smollm2-135m", "float32")
    assert job.inputs == ("a", "b")
    assert (job.pool.cpus, job.price_per_hour) == (2, 3)


def test_grounding_is_chosen_in_yaml_to_which_off_is_false(tmp_path: Path) -> None:
    path = job_file(tmp_path, BASE + "decode: {grounding: mark}\n")
    spans = ["output.spans=true"]
    assert compose(load_config(path, spans), path).output_options.spans
    off = load_config(path, ["decode.grounding=off", *spans])
    assert off.decode.grounding is Grounding.OFF
    with pytest.raises(ConfigError, match="output spans need grounding"):
        compose(off, path)


def test_types_and_several_values_are_declared_in_the_schema(tmp_path: Path) -> None:
    more = "    tents: {attributes: [{name: Weight, type: quantity}, {name: Colors, many: true}]}\n  default"
    path = job_file(tmp_path, BASE.replace("  default", more))
    schemas = load_schemas(load_config(path).schemas, path)
    weight, colors = schemas["tents"][0]
    assert (weight.type, weight.many, colors.type, colors.many) == ("quantity", False, "string", True)


def test_schemas_that_share_a_column_agree_on_one_or_several(tmp_path: Path) -> None:
    more = "    tents: {attributes: [{name: Size, type: integer, many: true}]}\n  default"
    text = BASE.replace("  default", more).replace('"}', '", category_column: c}')
    path = job_file(tmp_path, text)
    with pytest.raises(JobError, match="schema 'shoes' declares integer, schema 'tents' many integer"):
        compose(load_config(path), path).attributes()


def test_a_model_may_be_named_and_then_changed(tmp_path: Path) -> None:
    config = load_config(job_file(tmp_path), ["model=some/hub-id", "model.revision=abc"])
    assert (config.model.source, config.model.revision) == ("some/hub-id", "abc")


@pytest.fixture
def fine_tuned(tmp_path: Path) -> Path:
    """A folder with no weights, but with the recipe of some."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    settings = DecodeSettings(layout=Layout.GAPS, max_value_tokens=9)
    Recipe("somebody/base", settings, PromptTemplate(system="as trained"), Prompting.PLAIN).write(folder)
    return folder


def test_a_job_decodes_as_its_model_was_trained_but_for_what_it_gives(tmp_path: Path, fine_tuned: Path) -> None:
    path = job_file(
        tmp_path, f"{BASE}model: {{source: somebody/base, adapter: {fine_tuned}}}\ndecode: {{max_slots: 7}}"
    )
    spec = compose(load_config(path), path).decoder
    assert spec.template.system == "as trained"
    assert spec.model.prompting is Prompting.PLAIN
    assert spec.settings == DecodeSettings(layout=Layout.GAPS, max_value_tokens=9, max_slots=7)
    changed = load_config(path, ["decode.max_value_tokens=5", "prompt.system=x"])
    assert (changed.decode.max_value_tokens, changed.decode.layout, changed.prompt.system) == (5, "gaps", "x")
    with pytest.raises(ConfigError, match=r"job.yaml: .*tuned: .*max_value_tokens is 5, trained with 9"):
        compose(changed, path)


def test_a_lost_adapter_is_named_with_the_model(tmp_path: Path) -> None:
    path = job_file(tmp_path, f"{BASE}model: {{source: somebody/base, adapter: lost}}")
    with pytest.raises(ConfigError, match=r"^[^\n]*job.yaml: model: adapter lost: no folder lost$"):
        load_config(path)


def test_a_named_model_may_bring_its_wording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"source": "somebody/base", "template": {"system": "Be brief."}}
    monkeypatch.setattr("pipeline.models.shipped", lambda _: {"worded": entry, "smollm2-135m": {"source": "a/b"}})
    path = job_file(tmp_path, BASE + "model: worded")
    prompt = compose(load_config(path), path).decoder.template
    assert prompt == PromptTemplate(system="Be brief.")
    prompt = compose(load_config(path, ["prompt.system=Be good."]), path).decoder.template
    assert prompt == PromptTemplate(system="Be good.")
    entry["template"] = {"sistem": ""}
    with pytest.raises(ConfigError, match=r"conf/models.yaml: worded: .*sistem"):
        load_config(path)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = job_file(tmp_path)
    job = compose(load_config(path, ["input.limit=5"]), path, inputs=["x", "y"], output="z", limit=3)
    assert (job.inputs, job.output, job.limit) == (("x", "y"), "z", 3)
    assert compose(load_config(path, ["input.limit=5"]), path).limit == 5


def test_secrets_of_a_store_are_never_in_what_is_written(tmp_path: Path) -> None:
    path = job_file(tmp_path)
    job = compose(load_config(path, ["input.storage={secret: hush}", "output.storage={secret: hush}"]), path)
    assert job.input_storage == job.output_storage == {"secret": "hush"}
    assert "hush" not in str(job.config)


def test_two_schemas_may_not_claim_one_category(tmp_path: Path) -> None:
    more = BASE.replace("  default", "    boots: {categories: [shoes], attributes: [Brand]}\n  default")
    path = job_file(tmp_path, more)
    with pytest.raises(ConfigError, match="schemas: category 'shoes' is of schema 'boots', and of 'shoes' in"):
        compose(load_config(path), path)


def test_categories_are_read_without_edge_blanks_as_rows_are(tmp_path: Path) -> None:
    path = job_file(tmp_path, BASE.replace("attributes: [Brand,", "categories: [' Trail shoes '], attributes: [Brand,"))
    config = load_config(path, ["text.category_column=kind"])
    assert set(catalog_reader(config, path).schemas) == {"Trail shoes"}


def test_a_schema_file_lies_relative_to_the_job_s_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "hats.yaml").write_text("hats: {categories: [Hats, Caps], attributes: [Brim]}\n")
    text = BASE.replace("schemas:", "schemas:\n  file: hats.yaml").replace('"}', '", category_column: c}')
    path = job_file(tmp_path / "conf", text)

    reader = compose(load_config(path), path).reader

    assert set(reader.schemas) == {"Hats", "Caps", "shoes"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hats: {attribute: [Brim]}", "hats: unknown key 'attribute'; did you mean 'attributes'?"),
        ("hats: {attributes: [{nam: Brim}]}", "hats.attributes.0: unknown key 'nam'; did you mean 'name'?"),
        ("hats: {attributes: [{name: A, type: int}]}", "hats.attributes.0.type: Input should be 'string'"),
        ("hats: {attributes: [{name: A, values: [1]}]}", "hats.attributes.0.values.0: must be text; a number"),
        ("hats: [Brim]", "hats: must be a section of the keys categories, attributes"),
        ("hats: {attributes: []}", "schema 'hats' has no attribute"),
        ("hats: {attributes: ['a:b']}", "hats: attribute name 'a:b'"),
        ("shoes: {attributes: [Brim]}", "schemas.define: schema 'shoes' is declared twice"),
    ],
)
def test_what_is_wrong_in_a_schema_file_is_named_as_it_stands_there(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "hats.yaml").write_text(content)
    path = job_file(tmp_path, BASE.replace("schemas:", "schemas:\n  file: hats.yaml"))
    with pytest.raises(ConfigError) as caught:
        compose(load_config(path), path)
    own = "declared twice" not in message
    assert f"{tmp_path / 'hats.yaml' if own else path}: {message}" in str(caught.value)
    assert not own or "define" not in str(caught.value)


def test_what_run_json_keeps_is_what_runs(tmp_path: Path) -> None:
    path = job_file(tmp_path)
    config = load_config(path, ["input.storage.secret=hunter2"])
    given = compose(config, path, inputs=["a", "b"], output="else", limit=3).config
    assert given["input"] == {"path": ["a", "b"], "limit": 3} and given["output"]["path"] == "else"
    own = compose(config, path).config
    assert own["input"] == {"path": ["in"], "limit": None} and own["output"]["path"] == "out"
    assert own["text"] == config.public()["text"]


def test_confidence_is_part_of_the_decoder_and_nothing_where_nothing_is_set(tmp_path: Path) -> None:
    def rule(extra: str) -> ConfidenceRule | None:
        path = job_file(tmp_path, BASE + extra)
        return compose(load_config(path), path).decoder.confidence

    assert rule("") is None and rule("confidence: {calibrated: false}\n") is None
    assert rule("confidence: {threshold: 0.6}\n") == ConfidenceRule(threshold=0.6)
    assert rule("confidence: {threshold: {Brand: 1}}\n") == ConfidenceRule(thresholds={"Brand": 1})
    shipped = rule("confidence: {calibrated: true, threshold: auto}\n")
    assert shipped and shipped.calibration and 0.2 < shipped.threshold < 0.6  # that of the default model
    with pytest.raises(ConfigError, match=r"job\.yaml: threshold: no attribute 'Brnd'; did you mean 'Brand'"):
        rule("confidence: {threshold: {Brnd: 0.6}}\n")
    with pytest.raises(ConfigError, match=r"job\.yaml: .*nowhere\.json: no such file"):
        rule("confidence: {calibrated: true, file: nowhere.json}\n")
