"""Likelihood of documents in chunks: the numbers of one long pass, and what forgetting costs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from eval.streamed_likelihood import StreamedLikelihood
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local, Recurrent
from longctx.attention.positions import RelativeEmbedding
from longctx.evaluator import Trained
from longctx.mixers import TransformerXL
from longctx.transformer import Transformer
from tests.longctx.documents import Documents

TABLE = RelativeEmbedding(max_distance=9)
XL = TransformerXL(heads=2, position=TABLE, pattern=Recurrent(4, 7))
EVALUATOR = StreamedLikelihood(chunk=8, batch=2, edges=(10, 20), longest=40)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def trained(mixer) -> Trained:
    config = Transformer(layers=1, model=8, hidden=8, mixer=mixer, dropout=0.0)
    graphdef, params = nnx.split(config.build(10, jnp.float32, seed=0))
    return Trained(graphdef, params, Documents(), window=8, step=0)


def losses(model: Trained, sequence: np.ndarray) -> np.ndarray:
    tokens = np.concatenate([[0], sequence])[None]
    logits, _ = model.model()(jnp.asarray(tokens[:, :-1]))
    return np.asarray(optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])[0])


def test_chunks_that_carry_a_state_give_the_losses_of_the_whole():
    model = trained(XL)
    pieces = [s[:40] for s in Documents().sequences("valid")]
    whole = sorted((losses(model, piece) for piece in pieces), key=len, reverse=True)
    found = list(EVALUATOR.documents(model, carry=True))
    for ours, theirs in zip(found, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    named = dict(EVALUATOR.run(model))
    assert named["valid/streamed_nll"] == pytest.approx(np.concatenate(whole).mean(), abs=1e-5)
    late = np.concatenate([nll[20:] for nll in whole])
    assert named["valid/streamed_nll_from_20"] == pytest.approx(late.mean(), abs=1e-5)


def test_forgetting_between_chunks_costs_nothing_where_nothing_is_kept():
    local = trained(Attention(heads=2, position=TABLE, pattern=Local(8)))
    assert dict(EVALUATOR.run(local))["valid/streamed_truncation_delta"] == 0.0
    assert dict(EVALUATOR.run(trained(XL)))["valid/streamed_truncation_delta"] != 0.0
    apart = list(EVALUATOR.documents(trained(XL), carry=False))
    piece = max(Documents().sequences("valid"), key=len)[:40]
    np.testing.assert_allclose(apart[0][:8], losses(trained(XL), piece[:8]), atol=1e-5)


def test_longer_documents_are_cut():
    found = list(replace(EVALUATOR, longest=12).documents(trained(XL), carry=True))
    assert [len(document) for document in found] == [12, 12, 9]
