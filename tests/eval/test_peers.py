"""The PyTorch peers compute what they claim to; skipped where PyTorch is absent."""

import pytest

torch = pytest.importorskip("torch")

from eval.peers import PeerConfig  # noqa: E402
from eval.peers.torch_gpt import TorchGPT  # noqa: E402
from eval.peers.torch_music_transformer import TorchMusicTransformer  # noqa: E402

SMALL = PeerConfig(length=12, batch=2, layers=2, model=32, heads=4, hidden=64, vocab=11, threads=1)


def test_the_relative_term_is_the_one_of_the_distance():
    attention = TorchMusicTransformer(SMALL).network.blocks[0].attention
    q, k = torch.randn(2, 3, 4, 9, 8)
    wanted = torch.zeros(3, 4, 9, 9)
    for i in range(9):
        distances = attention.distances[:, SMALL.length - 1 - i :][:, : i + 1]  # of keys 0..i
        term = torch.einsum("bhd,hjd->bhj", q[:, :, i], distances)
        scores = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, : i + 1]) + term
        wanted[:, :, i, : i + 1] = (scores / 8**0.5).softmax(-1)
    torch.testing.assert_close(attention.probabilities(q, k), wanted)


def test_a_cache_changes_no_logits():
    peer = TorchGPT(SMALL)
    tokens = torch.randint(SMALL.vocab, (2, 12))
    caches = peer.empty_caches(2, 12)
    with torch.inference_mode():
        steps = [peer.network(tokens[:, i : i + 1], i, caches) for i in range(12)]
        torch.testing.assert_close(torch.cat(steps, 1), peer.network(tokens))


@pytest.mark.parametrize("peer_class", [TorchGPT, TorchMusicTransformer])
def test_the_future_changes_nothing(peer_class):
    network = peer_class(SMALL).network
    tokens = torch.randint(SMALL.vocab, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % SMALL.vocab
    torch.testing.assert_close(network(tokens)[:, :7], network(changed)[:, :7])


@pytest.mark.parametrize("peer_class", [TorchGPT, TorchMusicTransformer])
def test_training_lowers_the_loss_and_generation_gives_tokens(peer_class):
    peer = peer_class(SMALL)
    losses = [peer.train_step() for _ in range(60)]
    assert sum(losses[-20:]) < sum(losses[:20])
    tokens = peer.generate(3, 12)
    assert tokens.shape == (3, 12)
    assert 0 <= tokens.min() <= tokens.max() < SMALL.vocab
    with pytest.raises(ValueError, match="length=13"):
        peer.generate(3, 13)
