"""Cached generation: the same tokens as recomputing everything, endings, seeds, batches."""

from functools import lru_cache, partial

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx.attention.layer import Attention
from longctx.attention.patterns import Local, Prefix
from longctx.attention.positions import Learned, RelativeEmbedding
from longctx.generate import CHUNK, STAGE, generate
from longctx.sampling import Sampler
from longctx.transformer import Transformer

GREEDY = Sampler(temperature=0.0)
NEVER = -1


@lru_cache(maxsize=2)
def model(local: bool):
    mixer = Attention(heads=2, position=RelativeEmbedding(max_distance=20))
    if local:
        mixer = Attention(heads=2, position=mixer.position, pattern=Local(16))
    config = Transformer(layers=2, model=16, hidden=32, mixer=mixer)
    return nnx.split(config.build(11, jnp.float32, seed=1))


def test_learned_positions_end():
    mixer = Attention(heads=2, position=Learned(length=12))
    config = Transformer(layers=1, model=16, hidden=16, mixer=mixer)
    graphdef, params = nnx.split(config.build(7, jnp.float32, seed=0))
    call = partial(generate, graphdef, params, [np.array([0, 1, 2])], boundary=-1, sampler=GREEDY)
    assert len(call(length=10)[0]) == 10
    with pytest.raises(ValueError, match=r"3 tokens and 11 new ones, but .* end after 12"):
        call(length=11)


def test_a_prompt_holds_what_is_read_at_once():
    mixer = Attention(heads=2, pattern=Prefix(length=4))
    config = Transformer(layers=1, model=16, hidden=16, mixer=mixer)
    graphdef, params = nnx.split(config.build(7, jnp.float32, seed=0))
    call = partial(generate, graphdef, params, length=3, boundary=-1, sampler=GREEDY)
    assert [len(row) for row in call([np.arange(4), np.arange(6)])] == [3, 3]
    with pytest.raises(ValueError, match="3 tokens, but the model reads the first 4 at once"):
        call([np.arange(6), np.arange(3)])


@pytest.mark.parametrize("local", [False, True])
def test_greedy_is_the_argmax_of_the_full_pass(local):
    """Over prompts of different lengths, several chunks and a grown cache."""
    graphdef, params = model(local)
    prompts = [np.array([0]), np.array([3, 1, 4, 1, 5])]
    length = STAGE + CHUNK
    rows = generate(graphdef, params, prompts, length=length, boundary=NEVER, sampler=GREEDY)
    for prompt, row in zip(prompts, rows, strict=True):
        assert len(row) == length
        whole = np.concatenate([prompt, row])
        logits = np.asarray(nnx.merge(graphdef, params)(jnp.asarray(whole[None]))[0][0])
        chosen = logits[len(prompt) - 1 : -1]
        best = chosen.max(axis=-1)
        np.testing.assert_allclose(chosen[np.arange(length), row], best, atol=1e-4)


def test_the_boundary_ends_a_row_and_only_that_row():
    graphdef, params = model(False)
    prompts = [np.array([0])] * 6
    rows = generate(graphdef, params, prompts, length=200, boundary=7, sampler=Sampler(), seed=3)
    free = generate(
        graphdef, params, prompts, length=200, boundary=NEVER, sampler=Sampler(), seed=3
    )
    assert len({len(row) for row in rows}) > 1
    for row, unbounded in zip(rows, free, strict=True):
        ends = np.flatnonzero(unbounded == 7)
        end = ends[0] if len(ends) else 200
        np.testing.assert_array_equal(row, unbounded[:end])


def test_seeds_repeat_and_rows_do_not_depend_on_their_number():
    graphdef, params = model(False)

    def draw(count: int, seed: int) -> list:
        prompts = [np.array([0, 5])] * count
        return generate(
            graphdef, params, prompts, length=30, boundary=NEVER, sampler=Sampler(), seed=seed
        )

    first, again, more, other = draw(2, 0), draw(2, 0), draw(5, 0), draw(2, 1)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, more[:2])
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])


def test_bad_requests_are_refused():
    graphdef, params = model(False)
    with pytest.raises(ValueError, match="at least one token"):
        generate(graphdef, params, [np.array([], np.int32)], length=3, boundary=0, sampler=GREEDY)
    with pytest.raises(ValueError, match="at least one token"):
        generate(graphdef, params, [], length=3, boundary=0, sampler=GREEDY)
    with pytest.raises(ValueError, match="at least 1 new token"):
        generate(graphdef, params, [np.array([1])], length=0, boundary=0, sampler=GREEDY)
