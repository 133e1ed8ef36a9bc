"""Configs as JSON: nothing is lost, and nothing but a config is ever built."""

import json
from dataclasses import dataclass, replace

import pytest

from configs.catalogue import load_config, names
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import RoPE
from longctx.serialise import config_hash, differences, from_json, to_json
from longctx.train.config import Train
from music.chorales import Chorales


@pytest.mark.parametrize("name", sorted(names()))
def test_every_experiment_survives_the_way_through_json(name):
    config = load_config(name)
    text = to_json(config)
    assert from_json(text) == config
    assert to_json(from_json(text)) == text
    assert config_hash(from_json(text)) == config_hash(config)


def test_numbers_keep_their_type_and_every_digit():
    config = Train(data=Chorales(), seed=2**60 + 1)
    config = replace(config, optimizer=replace(config.optimizer, learning_rate=0.1 + 0.2, clip=1.0))
    back = from_json(to_json(config))
    assert back.seed == 2**60 + 1
    assert repr(back.optimizer) == repr(config.optimizer)


def test_variants_come_back_as_themselves():
    mixer = Attention(heads=4, kv_heads=2, position=RoPE(base=7.5), pattern=Local(size=3))
    back = from_json(to_json(mixer))
    assert back == mixer
    assert type(back.pattern) is Local


def test_any_changed_field_changes_the_hash():
    config = Train(data=Chorales())
    changed = [
        replace(config, seed=1),
        replace(config, data=Chorales(held=True)),
        replace(config, model=replace(config.model, mixer=Attention(position=RoPE()))),
    ]
    assert len({config_hash(c) for c in [config, *changed]}) == 4


def test_differences_name_each_field_and_both_values():
    ours = Train(data=Chorales(), seed=1)
    theirs = replace(ours, seed=2, model=replace(ours.model, mixer=Attention(pattern=Local(8))))
    assert differences(ours, ours) == []
    assert differences(ours, theirs) == [
        "model.mixer.pattern: Causal(), not Local(size=8, ahead=0)",
        "seed: 1, not 2",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "builtins:dict",
        "pickle:loads",
        "json:JSON",
    ],
)
def test_what_is_no_dataclass_is_refused(name):
    with pytest.raises(ValueError, match=r"which is no config class|can't be found"):
        from_json(json.dumps({"class": name, "args": "true"}))


@pytest.mark.parametrize(
    "name", ["", ":", "longctx", "no.such.module:Name", ".relative:Name", "longctx.:X", None, 3, []]
)
def test_a_name_that_leads_nowhere_is_refused(name):
    with pytest.raises(ValueError, match="can't be found"):
        from_json(json.dumps({"class": name}))


def test_a_dictionary_without_a_class_is_refused():
    with pytest.raises(ValueError, match="can't be found"):
        from_json('{"seed": 1}')


@pytest.mark.parametrize("text", ["", "{", "Train()", '{"class": '])
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match="is not JSON"):
        from_json(text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda plain: plain.update(new_field=1), "new_field"),
        (lambda plain: plain.pop("data"), "data"),
        (lambda plain: plain.update(steps=0), "steps must be at least 1"),
        (lambda plain: plain.update(steps="many"), "does not fit this version"),
    ],
)
def test_fields_that_do_not_fit_are_refused(change, reason):
    plain = json.loads(to_json(Train(data=Chorales())))
    change(plain)
    with pytest.raises(ValueError, match=reason):
        from_json(json.dumps(plain))


@dataclass(frozen=True)
class Holder:
    value: object


@pytest.mark.parametrize("value", [print, {"a": 1}, object(), b"bytes", Holder])
def test_a_config_that_holds_no_plain_value_can_not_be_written(value):
    with pytest.raises(TypeError, match="a config can't hold"):
        to_json(Holder(value))
