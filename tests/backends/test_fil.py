"""Tree models: files and objects of four libraries, compared with these; parameters, shapes, errors."""

# ruff: noqa: N803, N806 - X and y, as in scikit-learn
from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.base import WAY_OUT
from nbtriton.common.errors import LoadError

treelite = pytest.importorskip("treelite", reason="treelite is not installed (extra fil)")
# The libraries whose models these are take a processor three seconds to import: on first use.
pytestmark = pytest.mark.medium

FEATURES, ROWS = 6, 64
PREFIX = "load failed for model 'm': version 1 is at UNAVAILABLE state: "


@pytest.fixture(scope="module")
def data():
    """Rows with gaps, and targets of two and of three classes."""
    random = np.random.default_rng(0)
    X = random.standard_normal((ROWS, FEATURES)).astype(np.float32)
    three = (np.digitize(X[:, 0] + X[:, 1] * X[:, 2], (-0.5, 0.5))).astype(int)
    return X, three


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


def parameters(**given):
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '
        for key, value in given.items()
    )


def config(width=1, *, features=FEATURES, **given):
    return f"""backend: "fil" max_batch_size: {ROWS} dynamic_batching {{ }}
    input {{ name: "input__0" data_type: TYPE_FP32 dims: {features} }}
    output {{ name: "output__0" data_type: TYPE_FP32 dims: {width} }} {parameters(**given)}"""


def predict(server, X, name="m"):
    return server.infer(name, {"input__0": X})["output__0"]


def refused(text, source):
    with nt.Server(gpus=()) as running, pytest.raises(LoadError) as caught:
        running.load(text, source, name="m")
    assert caught.value.message.startswith(PREFIX)
    return caught.value


# -- what the frameworks say -------------------------------------------------------------------------


def _xgboost(X, y, objective, **more):
    xgb = pytest.importorskip("xgboost", reason="xgboost is not installed (extra test)")
    settings = {"objective": objective, "max_depth": 3, "nthread": 1, **more}
    return xgb.train(settings, xgb.DMatrix(X, y), 5)


def _lightgbm(X, y, objective, **more):
    lgb = pytest.importorskip("lightgbm", reason="lightgbm is not installed (extra test)")
    settings = {
        "objective": objective,
        "verbose": -1,
        "min_data_in_leaf": 2,
        "num_threads": 1,
        **more,
    }
    return lgb.train(settings, lgb.Dataset(X, y), 5)


@pytest.mark.parametrize("kind", ["xgboost_json", "xgboost_ubj", "lightgbm"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_FL1_a_file_answers_as_its_framework(server, tmp_path, data, kind, classes):
    xgb = pytest.importorskip("xgboost", reason="xgboost is not installed (extra test)")
    X, three = data
    X = np.where(np.abs(X) > 1.8, np.float32(np.nan), X)  # gaps go their own way
    y = three if classes == 3 else (three > 0).astype(int) if classes == 2 else X[:, 0] * 2
    y = np.nan_to_num(y)
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    several = {"num_class": 3} if classes == 3 else {}
    if kind == "lightgbm":
        objective = {0: "regression", 2: "binary", 3: "multiclass"}[classes]
        model = _lightgbm(X, y, objective, **several)
        model.save_model(folder / "model.txt")
        expected = model.predict(X)
    else:
        objective = {0: "reg:squarederror", 2: "binary:logistic", 3: "multi:softprob"}[classes]
        model = _xgboost(X, y, objective, **several)
        model.save_model(folder / f"xgboost.{kind[8:]}")
        expected = model.predict(xgb.DMatrix(X))
    said = {"model_type": kind, "output_class": str(classes > 0).lower(), "threshold": "0.5"}
    if classes == 2:
        expected = np.stack((1 - expected, expected), 1)
    text = config(max(1, classes), predict_proba=str(classes > 0).lower(), **said)
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    server.load_repository(tmp_path)
    np.testing.assert_allclose(predict(server, X), expected, rtol=1e-5, atol=1e-6)
    if classes:
        (tmp_path / "m" / "config.pbtxt").write_text(config(predict_proba="false", **said))
        with nt.Server(gpus=()) as other:
            other.load_repository(tmp_path)
            found = predict(other, X)
        assert found.tolist() == expected.argmax(1).tolist()


@pytest.mark.parametrize(
    "name",
    ["RandomForestClassifier", "ExtraTreesRegressor", "GradientBoostingClassifier", "RandomForestRegressor"],
)  # fmt: skip
def test_an_estimator_of_scikit_learn_answers_as_itself(server, data, name):
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    X, three = data
    settings = {"n_estimators": 4, "max_depth": 3, "random_state": 0}
    model = getattr(ensemble, name)(**settings).fit(X, three)
    classifies = "Classifier" in name
    server.load(
        f'backend: "fil" max_batch_size: {ROWS} '
        + parameters(predict_proba=str(classifies).lower()), model, name="m",
    )  # fmt: skip
    expected = model.predict_proba(X) if classifies else model.predict(X)
    np.testing.assert_allclose(predict(server, X), expected, rtol=1e-5, atol=1e-6)
    # What the object says by itself is in the configuration.
    done = server.config("m")
    assert list(done.input[0].dims) == [FEATURES]
    assert list(done.output[0].dims) == [3 if classifies else 1]
    assert done.parameters["output_class"].string_value == str(classifies).lower()


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosters_and_estimators_of_a_notebook(server, data, library):
    xgb = pytest.importorskip("xgboost", reason="xgboost is not installed (extra test)")
    lgb = pytest.importorskip("lightgbm", reason="lightgbm is not installed (extra test)")
    X, three = data
    if library == "xgboost":
        booster = _xgboost(X, three, "multi:softprob", num_class=3)
        estimator = xgb.XGBRegressor(n_estimators=3, max_depth=2, n_jobs=1).fit(X, X[:, 0])
    else:
        booster = _lightgbm(X, three, "multiclass", num_class=3)
        estimator = lgb.LGBMRegressor(n_estimators=3, n_jobs=1, verbose=-1).fit(X, X[:, 0])
    whole = xgb.DMatrix(X) if library == "xgboost" else X
    text = f'backend: "fil" max_batch_size: {ROWS} '
    server.load(text + parameters(predict_proba="true"), booster, name="m")
    np.testing.assert_allclose(predict(server, X), booster.predict(whole), rtol=1e-5)
    server.load(text, estimator, name="r")
    np.testing.assert_allclose(predict(server, X, "r"), estimator.predict(X), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_and_batches_of_several_requests(server, tmp_path, data):
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    X, three = data
    model = ensemble.RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, three)
    path = tmp_path / "checkpoint.tl"
    treelite.sklearn.import_model(model).serialize(path)
    text = config(3, model_type="treelite_checkpoint", output_class="true", threshold=0.5,
                  predict_proba="true")  # fmt: skip
    server.load(text, path, name="m")
    futures = [server.submit("m", {"input__0": X[at : at + 4]}) for at in range(0, ROWS, 4)]
    found = np.concatenate([future.result()["output__0"] for future in futures])
    np.testing.assert_allclose(found, model.predict_proba(X), rtol=1e-5, atol=1e-6)


def test_the_users_own_model_stays_as_it_was(server, data):
    X, three = data
    model = treelite.frontend.from_lightgbm(_lightgbm(X, three, "multiclassova", num_class=3))
    before = model.get_header_accessor().get_field("postprocessor")
    server.load(
        f'backend: "fil" max_batch_size: {ROWS} {parameters(predict_proba="true")}', model, name="m"
    )
    # FL7: Triton says the softmax of margins, also of a model that was trained one against all.
    np.testing.assert_allclose(predict(server, X).sum(1), np.ones(ROWS), rtol=1e-5)
    assert model.get_header_accessor().get_field("postprocessor") == before == "multiclass_ova"


# -- parameters and shapes ------------------------------------------------------------------------------


@pytest.fixture
def binary(tmp_path, data):
    xgb = pytest.importorskip("xgboost", reason="xgboost is not installed (extra test)")
    X, three = data
    path = tmp_path / "xgboost.json"
    model = _xgboost(X, three > 0, "binary:logistic")
    model.save_model(path)
    return path, model.predict(xgb.DMatrix(X))


BINARY = {"model_type": "xgboost_json", "output_class": "true", "threshold": "0.5"}


@pytest.mark.parametrize("threshold", ["0.3", "0.7 and so on"])
def test_FL2_the_threshold_of_two_classes(server, data, binary, threshold):
    path, expected = binary
    server.load(config(**{**BINARY, "threshold": threshold}), path, name="m")
    found = predict(server, data[0])
    assert found.tolist() == (expected > float(threshold[:3])).astype(float).tolist()
    # FL6: a row of one element has no dimension of its own.
    assert found.shape == (ROWS,)
    assert found.dtype == np.float32


def test_FL5_probabilities_of_two_classes_as_two_columns_or_one(server, data, binary):
    path, expected = binary
    for width, wanted in ((2, np.stack((1 - expected, expected), 1)), (1, expected)):
        server.load(config(width, predict_proba="true", **BINARY), path, name="m")
        np.testing.assert_allclose(predict(server, data[0]), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"model_type": "xgboost_json"}, "Invalid argument: Required parameter output_class not found in config;", '"false" for a regression'),
        ({"model_type": "xgboost_json", "output_class": "true"}, "Invalid argument: Required parameter threshold not found in config;", '"0.5"'),
        ({**BINARY, "threshold": "half"}, "Invalid argument: Bad input for parameter threshold;", "half"),
        ({**BINARY, "output_class": "yes"}, "Internal: Expected 'true' or 'false' for parameter 'output_class', got: 'yes';", ""),
        ({**BINARY, "predict_proba": "True"}, "Internal: Expected 'true' or 'false' for parameter 'predict_proba', got: 'True';", ""),
        ({**BINARY, "model_type": "xgboost_jsn"}, "Unsupported: xgboost_jsn not recognized as a valid serialization format.;", "did you mean 'xgboost_json'?"),
    ],
)  # fmt: skip
def test_FL3_parameters_that_are_wrong(binary, given, message, hint):
    error = refused(config(**given), binary[0])
    assert error.message.removeprefix(PREFIX) == message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (config(3, predict_proba="true", **BINARY), "output__0 has [3], the model gives 2 values a row"),
        (config(features=5, **BINARY), "input__0 has [5], the model has 6 features"),
        (config(**BINARY).replace("input__0", "x"), "No input with name input__0 in configuration."),
        (config(**BINARY).replace("TYPE_FP32", "TYPE_FP64"), "input__0 is TYPE_FP64"),
        (config(**BINARY) + 'output { name: "treeshap_output" data_type: TYPE_FP32 dims: 7 }', "Shapley values"),
        (config(**BINARY).replace("max_batch_size: 64 dynamic_batching { }", ""), "the model has 6 features"),
    ],
)  # fmt: skip
def test_FL4_a_configuration_that_does_not_fit_the_model(binary, text, says):
    assert says in refused(text, binary[0]).message


def test_without_batching_the_first_dimension_counts_the_rows(server, data, binary):
    path, expected = binary
    text = config(**BINARY).replace("max_batch_size: 64 dynamic_batching { }", "max_batch_size: 0")
    text = text.replace("dims: 6", "dims: [ -1, 6 ]").replace("dims: 1 ", "dims: [ -1, 1 ] ")
    server.load(text, path, name="m")
    assert predict(server, data[0]).tolist() == (expected > 0.5).astype(float).tolist()


def test_files_that_are_no_models(tmp_path, binary):
    error = refused(config(**{**BINARY, "model_type": "lightgbm"}), binary[0])
    assert "Unknown: Check failed" in error.message
    assert "Ill-formed LightGBM model file" in error.message
    assert "model_type is lightgbm" in error.hint
    error = refused(config(**BINARY), tmp_path / "1")
    assert f"Unavailable: Could not open model file {tmp_path / '1'}" in error.message
    assert WAY_OUT in error.hint


@pytest.mark.slow
def test_a_forest_runs_in_a_process_of_its_own(server, data, binary):
    own = parameters(INSTANCE_ISOLATION="process")
    server.load(config(2, predict_proba="true", **BINARY) + own, binary[0], name="m")
    expected = np.stack((1 - binary[1], binary[1]), 1)
    np.testing.assert_allclose(predict(server, data[0]), expected, rtol=1e-5, atol=1e-6)


def test_forests_are_exported_as_files_that_load(server, data, binary, tmp_path):
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    """An object as a checkpoint with what it says by itself, a file as it is."""
    X, three = data
    forest = ensemble.RandomForestClassifier(2, max_depth=3, random_state=0).fit(X, three)
    text = f'backend: "fil" max_batch_size: {ROWS} '
    server.load(text + parameters(predict_proba="true"), forest, name="object")
    server.load(config(2, predict_proba="true", **BINARY), binary[0], name="file")
    server.export(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("*/1/*")) == [
        "checkpoint.tl",
        "xgboost.json",
    ]
    with nt.Server(gpus=()) as other:
        assert other.load_repository(tmp_path / "out").errors == {}
        for name in ("object", "file"):
            assert predict(other, X, name).tolist() == predict(server, X, name).tolist()


def test_a_gpu_is_refused_in_the_words_of_a_build_without_one(binary):
    with nt.Server(gpus=[0]) as running, pytest.raises(LoadError) as caught:
        running.load(config(**BINARY) + "instance_group { kind: KIND_GPU }", binary[0], name="m")
    assert "Unsupported: KIND_GPU cannot be used in CPU-only build" in caught.value.message


def test_on_a_simulated_gpu_it_is_of_its_own_class_and_accounted_there(binary, data):
    """The host computes; copies, memory and time are the device's."""
    with nt.Server(gpus="simulated:1,trees=4") as running:
        text = config(**BINARY) + "instance_group { kind: KIND_GPU }"
        running.load(text, binary[0], name="m")
        found = predict(running, data[0])
        operations = {one.operation for one in running.devices.ledger.computations()}
        copied = {one.reader for one in running.devices.ledger.copies()}
        memory = running.devices[0].memory().by_owner["m"]
    with nt.Server(gpus=()) as host:
        host.load(config(**BINARY), binary[0], name="m")
        assert found.tolist() == predict(host, data[0]).tolist()
    assert operations == {"trees"}
    assert copied == {"m: weights", "m.input__0", "host"}
    assert memory > 1000  # 5 trees, flat


def test_an_estimator_that_is_no_forest(data):
    from sklearn.linear_model import LinearRegression

    error = refused('backend: "fil" max_batch_size: 4', LinearRegression().fit(data[0], data[1]))
    assert "Unsupported: a LinearRegression is no tree model that treelite reads" in error.message
