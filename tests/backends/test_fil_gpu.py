"""The walk through trees that runs on a GPU, on the processor, beside treelite's GTIL."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.fil.forest import Forest, ForestParameters
from nbtriton.extensions.fil.gpu import GpuForest, flatten

treelite = pytest.importorskip("treelite", reason="treelite is not installed (extra fil)")
torch = pytest.importorskip("torch", reason="torch is not installed (extra torch)")

FEATURES = 5
CLASSES = 3
LONGEST = 6
# Where float32 and float64 differ, and where comparisons with and without "equal" do.
THRESHOLDS = (-1.0, -0.5, 0.0, 0.1, 0.3, 0.7, 1.0, 2.5)
VALUES = (
    -np.inf, -1.0, -0.5, -0.0, 0.0, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0, 1.5, 2.0, 2.5, 31.0, 32.0, 33.9,
    64.0, 2.0**24, 2.0**24 + 2, 2.0**31, np.inf, np.nan,
)  # fmt: skip
CATEGORIES = (0, 1, 2, 3, 31, 32, 33, 64, 2**24, 2**32 - 1)
POSTPROCESSORS = (
    "identity", "signed_square", "hinge", "sigmoid", "exponential", "exponential_standard_ratio",
    "logarithm_one_plus_exp",
)  # fmt: skip


def _forest(random, kind, dtype, *, average, postprocessor):
    """Return a random model of treelite's; its sums stay within 1, so that 1e-6 is ten of float32's steps."""
    from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

    several = kind in ("classes", "leaves of classes")
    count = CLASSES * int(random.integers(1, 4)) if several else int(random.integers(1, 12))
    by_leaf = kind == "leaves of classes"
    more = {"sigmoid_alpha": 1.7} if postprocessor in ("sigmoid", "multiclass_ova") else {}
    more = {"ratio_c": 1.3} if postprocessor == "exponential_standard_ratio" else more
    builder = ModelBuilder(
        threshold_type=dtype,
        leaf_output_type=dtype,
        metadata=Metadata(
            num_feature=FEATURES,
            task_type={"regression": "kRegressor", "two": "kBinaryClf"}.get(kind, "kMultiClf"),
            average_tree_output=average,
            num_target=1,
            num_class=[CLASSES if several else 1],
            leaf_vector_shape=(1, CLASSES if by_leaf else 1),
        ),
        tree_annotation=TreeAnnotation(
            num_tree=count,
            target_id=[0] * count,
            class_id=[-1 if by_leaf else n % CLASSES if several else 0 for n in range(count)],
        ),
        postprocessor=PostProcessorFunc(name=postprocessor, **more),
        base_scores=random.uniform(-0.3, 0.3, CLASSES if several else 1).tolist(),
    )
    for _ in range(count):
        builder.start_tree()
        keys = iter(range(1, 10_000))
        waiting = [(0, 0)]
        while waiting:
            key, depth = waiting.pop()
            builder.start_node(key)
            if depth >= random.integers(0, LONGEST):
                leaf = (random.uniform(-1, 1, CLASSES if by_leaf else 1) / count).tolist()
                builder.leaf(leaf if by_leaf else leaf[0])
            else:
                left, right = next(keys), next(keys)
                _split(builder, random, left, right)
                waiting += [(left, depth + 1), (right, depth + 1)]
            builder.end_node()
        builder.end_tree()
    return builder.commit()


def _split(builder, random, left, right):
    children = {"left_child_key": left, "right_child_key": right}
    at, default_left = int(random.integers(FEATURES)), bool(random.integers(2))
    if random.random() < 0.3:
        listed = random.choice(CATEGORIES, int(random.integers(0, 5)), replace=False)
        builder.categorical_test(
            at, default_left=default_left, category_list=sorted(int(one) for one in listed),
            category_list_right_child=bool(random.integers(2)), **children,
        )  # fmt: skip
    else:
        builder.numerical_test(
            at, float(random.choice(THRESHOLDS)), default_left=default_left,
            opname=str(random.choice(["<", "<=", "==", ">", ">="])), **children,
        )  # fmt: skip


def _parameters(*, proba=False, classes=False):
    return ForestParameters("treelite_checkpoint", proba, classes, 0.5, False, 1)


@pytest.mark.medium
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["regression", "two", "classes", "leaves of classes"]),
    dtype=st.sampled_from(["float32", "float64"]),
    average=st.booleans(),
    count=st.sampled_from([1, 2, 33]),
    said=st.sampled_from(["values", "class", "probabilities"]),
)
def test_random_forests_give_what_gtil_gives(seed, kind, dtype, average, count, said):
    random = np.random.default_rng(seed)
    several = kind in ("classes", "leaves of classes")
    names = ("identity_multiclass", "softmax", "multiclass_ova") if several else POSTPROCESSORS
    name = "sigmoid" if kind == "two" else str(random.choice(names))
    model = _forest(random, kind, dtype, average=average, postprocessor=name)
    if kind == "regression":
        said = "values"
    parameters = _parameters(proba=said == "probabilities", classes=said != "values")
    rows = random.choice(np.array(VALUES, np.float32), (count, FEATURES))
    forest = Forest(model, parameters)
    found = GpuForest(flatten(model), parameters, torch.device("cpu")).predict(
        torch.from_numpy(rows), forest.width
    )
    assert found.dtype is torch.float32
    np.testing.assert_allclose(
        found.numpy(), forest.predict(rows, forest.width), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "forest"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trained_ones_too(library, classes):
    random = np.random.default_rng(classes)
    rows = random.standard_normal((100, FEATURES)).astype(np.float32)
    truth = rows[:, 0] + rows[:, 1] * rows[:, 2]
    if classes:
        truth = np.digitize(truth, np.linspace(-0.5, 0.5, classes - 1))
    if library == "forest":
        trees = pytest.importorskip("sklearn.ensemble")
        kind = trees.RandomForestClassifier if classes else trees.RandomForestRegressor
        model = treelite.sklearn.import_model(
            kind(20, max_depth=8, random_state=0).fit(rows, truth)
        )
    elif library == "lightgbm":
        lgb = pytest.importorskip("lightgbm")
        objective = {0: "regression", 2: "binary", 3: "multiclass"}[classes]
        options = {"objective": objective, "verbose": -1, "num_threads": 1}
        options |= {"num_class": 3} if classes == 3 else {}
        rows[:, 4] = random.integers(0, 9, len(rows))
        data = lgb.Dataset(rows, truth, categorical_feature=[4])
        model = treelite.frontend.from_lightgbm(lgb.train(options, data, 8))
    else:
        xgb = pytest.importorskip("xgboost")
        objective = {0: "reg:squarederror", 2: "binary:logistic", 3: "multi:softprob"}[classes]
        options = {"objective": objective, "nthread": 1} | (
            {"num_class": 3} if classes == 3 else {}
        )
        model = treelite.frontend.from_xgboost(xgb.train(options, xgb.DMatrix(rows, truth), 8))
    parameters = _parameters(proba=classes > 0, classes=classes > 0)
    forest = Forest(model, parameters)
    rows[random.random(rows.shape) < 0.1] = np.nan
    found = GpuForest(flatten(model), parameters, torch.device("cpu")).predict(
        torch.from_numpy(rows), forest.width
    )
    np.testing.assert_allclose(
        found.numpy(), forest.predict(rows, forest.width), rtol=2e-6, atol=1e-6
    )


def test_rows_of_another_width_are_refused_and_none_are_none():
    random = np.random.default_rng(0)
    model = _forest(random, "regression", "float32", average=False, postprocessor="identity")
    forest = GpuForest(flatten(model), _parameters(), torch.device("cpu"))
    with pytest.raises(InvalidArgumentError, match="rows of 4 features, the model has 5"):
        forest.predict(torch.zeros((2, 4)), 1)
    assert forest.predict(torch.zeros((0, FEATURES)), 1).shape == (0, 1)
