"""The readability pipeline beside the frameworks that it is made of, at a small size."""

import json

import numpy as np
import pytest
import torch

import nbtriton as nt
from bench.readability.__main__ import main
from bench.readability.bert import SIZES, Bert, seeded
from bench.readability.build import Pipeline, build, column, requests, train_forest
from bench.readability.check import Direct
from bench.readability.corpus import excerpts, grade, texts
from bench.readability.figures import overlap
from nbtriton.common.errors import InvalidArgumentError, TritonError

pytestmark = pytest.mark.slow
SMALL = Pipeline(tokens=32, trees=8, training=60, max_batch_size=16)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    for package in ("tokenizers", "treelite", "sklearn"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra readability)")
    return build(tmp_path_factory.mktemp("readability"), SMALL)


@pytest.fixture(scope="module")
def server(repository):
    with nt.Server(gpus=()) as server:
        assert server.load_repository(repository).errors == {}
        yield server


def test_the_score_is_that_of_the_frameworks_called_directly(server, repository, tmp_path):
    chosen = excerpts(400)[::40]
    weight = np.linspace(0, 1, len(chosen), dtype=np.float32)[:, None]
    given = {"excerpt": column(chosen), "BERT_WEIGHT": weight}
    score = server.infer("ensemble_all", given)["SCORE"]

    bert = Direct(repository, SMALL).bert(chosen)
    training = excerpts(SMALL.training)

    def features(of):
        found = [
            server.infer("preprocess", {"INPUT0": column((text,))})["TREE_FEATS"] for text in of
        ]
        return np.concatenate(found)

    path = tmp_path / "checkpoint.tl"
    forest = train_forest(path, features(training), training, SMALL.trees, SMALL.depth)
    trees = forest.predict(features(chosen))[:, None]
    # FL6: the reshape of the forest's output lets `postprocess` batch.
    assert score.shape == (len(chosen), 1)
    np.testing.assert_allclose(score, weight * bert + (1 - weight) * trees, rtol=1e-4, atol=1e-4)


def test_the_trees_get_207_features_of_an_excerpt(server, repository):
    words = json.loads((repository / "preprocess" / "1" / "words.json").read_text())
    text = "The King said to the Queen: 'Stop!' Alice, the rabbit and a snout."
    (row,) = server.infer("preprocess", {"INPUT0": column((text,))})["TREE_FEATS"]
    assert row.shape == (207,)
    # the, said: no; to, the, the, and, a: yes.
    said = ["the", "king", "said", "to", "the", "queen", "stop", "alice", "the", "rabbit", "and"]
    said += ["a", "snout"]
    stops = sum(word in words["stop"] for word in said)
    assert row[:7].tolist() == [13, 11, 6, 2, 6.5, stops, stops / 2]
    counted = words["common"] + words["rare"]
    assert (len(counted), counted[0]) == (200, "the")
    for word in ("the", "alice", "queen"):
        if word in counted:
            assert row[7 + counted.index(word)] == np.float32(said.count(word) / 13)
    assert row[7:].sum() == pytest.approx(sum(word in counted for word in said) / 13)


def test_tokens_are_cut_and_padded_to_the_length_of_the_configuration(server):
    out = server.infer("preprocess", {"INPUT0": column(("Alice.", texts()[0][:2000]))})
    assert out["BERT_IDS"].shape == out["BERT_AM"].shape == (2, SMALL.tokens)
    short, long = out["BERT_AM"]
    assert (short.sum() < 8, long.sum()) == (True, SMALL.tokens)
    assert set(out["BERT_IDS"][0][short == 0].tolist()) == {0}


def test_padding_and_the_other_rows_of_a_batch_do_not_change_a_score(server):
    both = column(("Alice was tired.", texts()[1][:400]))
    weight = np.ones((2, 1), np.float32)
    together = server.infer("ensemble_all", {"excerpt": both, "BERT_WEIGHT": weight})["SCORE"]
    for at in range(2):
        alone = server.infer(
            "ensemble_all", {"excerpt": both[at : at + 1], "BERT_WEIGHT": weight[:1]}
        )["SCORE"]
        np.testing.assert_allclose(alone, together[at : at + 1], atol=1e-5)
    module = seeded("tiny")
    ids = torch.tensor([[2, 7, 8, 3]])
    padded = torch.tensor([[2, 7, 8, 3, 0, 0]])
    with torch.inference_mode():
        short = module(ids, torch.ones_like(ids))
        torch.testing.assert_close(module(padded, (padded != 0).int()), short)


def test_a_row_with_several_excerpts_or_weights_is_refused(server):
    weight = np.ones((1, 1), np.float32)
    with pytest.raises(
        TritonError, match=r"a row of INPUT0 is one excerpt: its shape is \[ROWS, 1\]"
    ):
        two = np.array([[b"one", b"two"]], object)
        server.infer("ensemble_all", {"excerpt": two, "BERT_WEIGHT": weight})
    with pytest.raises(TritonError, match="a row of BERT_WEIGHT_INPUT is one weight"):
        weights = np.ones((1, 2), np.float32)
        server.infer("ensemble_all", {"excerpt": column(("one",)), "BERT_WEIGHT": weights})
    with pytest.raises(InvalidArgumentError, match="BERT_WEIGHT"):
        server.infer("ensemble_all", {"excerpt": column(("one",))})


def test_bert_is_the_encoder_that_torch_has():
    size = SIZES["tiny"]
    module = seeded("tiny")
    layer = torch.nn.TransformerEncoderLayer(
        size.hidden, size.heads, size.inner, activation="gelu", batch_first=True,
        layer_norm_eps=1e-12, dropout=0.0,
    )  # fmt: skip
    encoder = torch.nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
    names = {
        "self_attn.in_proj_weight": "attend.weight",
        "self_attn.in_proj_bias": "attend.bias",
        "self_attn.out_proj": "attended",
        "linear1": "inner",
        "linear2": "outer",
        "norm1": "attention_norm",
        "norm2": "norm",
    }
    ours = module.state_dict()
    state = {}
    for key in encoder.state_dict():
        _, at, rest = key.split(".", 2)
        name = next(old for old in names if rest.startswith(old))
        state[key] = ours[f"layers.{at}.{rest.replace(name, names[name])}"]
    encoder.load_state_dict(state)
    encoder.train()  # without the fast path; there is no dropout
    ids = torch.randint(0, size.words, (3, 9))
    mask = torch.ones(3, 9).int()
    mask[1, 5:] = 0
    with torch.no_grad():
        places = module.positions.weight[:9] + module.kinds.weight[0]
        hidden = encoder(module.norm(module.words(ids) + places), src_key_padding_mask=mask == 0)
        torch.testing.assert_close(module(ids, mask), module.head(hidden[:, 0]))


def test_the_overlap_is_the_share_of_one_models_time_in_which_another_runs():
    assert overlap([(0, 10), (20, 30)], [(5, 25)]) == 0.5
    assert overlap([(0, 10)], [(0, 4), (6, 12)]) == 0.8
    assert overlap([(0, 10)], []) == overlap([], [(0, 1)]) == 0


def test_bert_large_has_its_334_million_parameters():
    with torch.device("meta"):
        module = Bert(SIZES["large"])
    assert sum(weight.numel() for weight in module.parameters()) == 334_093_313


def test_requests_have_different_excerpts_and_the_law_is_harder_to_read_than_alice():
    first, second = requests(3, 2)
    assert first["excerpt"].shape == (3, 1)
    assert first["excerpt"].tolist() != second["excerpt"].tolist()
    alice, law = (grade(text) for text in texts())
    assert law > alice + 5
    with pytest.raises(ValueError, match="the bundled texts have"):
        excerpts(10**6)


def test_it_is_checked_and_the_table_has_the_published_rows_and_says_simulated(tmp_path, capsys):
    for package in ("tokenizers", "treelite", "sklearn", "matplotlib"):
        pytest.importorskip(
            package, reason=f"{package} is not installed (extras readability, plot)"
        )
    drawn = tmp_path / "figure.svg"
    assert main(["check", "--tokens", "16", "--trees", "4", "--rows", "2"]) == 0
    assert "called directly, within 0.0001" in capsys.readouterr().out
    line = "table --tokens 16 --trees 4 --batch-sizes 1:2 --requests 2 --gpus simulated:1,module=50"
    assert main([*line.split(), "--figure", str(drawn)]) == 0
    text = capsys.readouterr().out
    assert "BERT tiny in float32, S=16 tokens, every excerpt padded or cut to S" in text
    head = next(row for row in text.splitlines() if "all on the CPU" in row)
    assert [part.strip() for part in head.split("  ") if part.strip()] == [
        "all on the CPU", "models on the GPU (simulated)", "all on the GPU (simulated)"
    ]  # fmt: skip
    rows = {row[:44].strip(): row[44:].split() for row in text.splitlines() if "batch size" in row}
    assert list(rows) == [
        "Latency p50 (ms), batch size 2",
        "Throughput (excerpts/s), batch size 2",
        "Throughput (excerpts/s), batch size 1",
    ]
    figures = [[float(cell.replace(",", "")) for cell in cells] for cells in rows.values()]
    assert [len(cells) for cells in figures] == [3] * 3
    assert min(map(min, figures)) > 0
    assert "GPU: simulated:1,module=50 (simulated)" in text
    assert "<svg" in drawn.read_text()
