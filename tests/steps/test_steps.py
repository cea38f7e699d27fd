"""Each ready step gives what its library gives, on the host and by torch."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import NotFoundError, TritonError

Image = pytest.importorskip("PIL.Image", reason="the image steps wrap Pillow")
scipy = pytest.importorskip("scipy", reason="the sound steps wrap SciPy")

# An instance on a GPU; on a simulated one, torch computes on the host.
ON_GPU = "instance_group [ { kind: KIND_GPU } ] "
BY_TORCH = (
    f'{ON_GPU} parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "yes" }} }}'
)


@pytest.fixture(params=["host", "torch", pytest.param("gpu", marks=pytest.mark.gpu)])
def run(request):
    """Run a step once; `run.place` is where."""
    if request.param == "torch":
        pytest.importorskip("torch")
    gpus = {"host": (), "torch": "simulated:1", "gpu": (0,)}[request.param]
    with nt.Server(gpus=gpus) as server:

        def run(name, /, inputs, **parameters):
            config = {"host": None, "torch": BY_TORCH, "gpu": ON_GPU}[request.param]
            server.load(config, nt.step(name, **parameters), name=name)
            return server.infer(name, inputs)

        run.place = request.param
        run.server = server
        yield run


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def photo(rng, height=53, width=71, count=1):
    """Smooth with some noise, as photographs are."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 9 + y / 17), np.cos(y / 7), np.sin((x + y) / 5)], -1)
    noise = rng.normal(0, 12, (count, height, width, 3))
    return (127 + 90 * waves + noise).clip(0, 255).astype(np.uint8)


def levels_apart(one, other):
    return int(np.abs(one.astype(int) - other.astype(int)).max())


# -- images ------------------------------------------------------------------------------------


def encoded(image, form, **options):
    found = io.BytesIO()
    image.save(found, form, **options)
    return found.getvalue()


def decode(server, *data):
    return server.infer("decode_image", {"DATA": np.array(data, object).reshape(-1, 1)})["IMAGE"]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_decode_image_gives_pillows_pixels(server, rng, form, mode):
    if mode in {"JPEG": ("P", "RGBA"), "WEBP": ("P",), "PNG": ()}[form]:
        pytest.skip(f"{form} has no images of mode {mode}")
    data = encoded(Image.fromarray(photo(rng)[0]).convert(mode), form)
    server.load(None, nt.step("decode_image"), name="decode_image")
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert (decode(server, data) == wanted[None]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode_image_turns_images_upright(server, rng, orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(photo(rng)[0]), "JPEG", exif=exif)
    server.load(None, nt.step("decode_image"), name="decode_image")
    found = decode(server, data)[0]
    assert (found == np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))).all()
    assert found.shape[:2] == ((71, 53) if orientation >= 5 else (53, 71))


def test_decode_image_refuses_a_request_and_not_those_beside_it(server, rng):
    batch = "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }"
    server.load(batch, nt.step("decode_image", max_pixels=9000), name="decode_image")
    good = encoded(Image.fromarray(photo(rng)[0]), "PNG")
    large = encoded(Image.fromarray(photo(rng, 100, 100)[0]), "PNG")
    gif = encoded(Image.fromarray(photo(rng)[0]), "GIF")
    sent = [
        server.submit("decode_image", {"DATA": np.array([[data]], object)})
        for data in (good, large, gif, good[: len(good) // 2])
    ]
    assert sent[0].result(60)["IMAGE"].shape == (1, 53, 71, 3)
    texts = []
    for future in sent[1:]:
        with pytest.raises(TritonError) as raised:
            future.result(60)
        texts.append(raised.value.message)
    assert texts[:2] == [
        "DATA: 100 x 100 pixels, max_pixels is 9000",
        "DATA: not an image in JPEG, PNG or WebP",
    ]
    assert texts[2].startswith("DATA: ")
    assert [batch.batch_size for batch in server.batches("decode_image")] == [4]


PAIR = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("letterbox", *({"IMAGE": np.zeros((1, size, 5, 3), np.uint8)} for size in (4, 0))),
        ("softmax", *({"SCORES": np.zeros((1, count), np.float32)} for count in (3, 0))),
        ("nms", *({"BOXES": np.zeros((1, 2, 4), np.float32), "SCORES": np.ones((1, count), np.float32)}
                  for count in (2, 3))),
    ],
)  # fmt: skip
def test_what_cannot_be_done_of_one_request_fails_no_other(server, name, good, bad):
    server.load(PAIR, nt.step(name), name=name)
    sent = [server.submit(name, inputs) for inputs in (good, bad)]
    assert sent[0].result(60)
    assert isinstance(sent[1].exception(60), TritonError)
    assert [batch.batch_size for batch in server.batches(name)] == [2]


def test_decode_image_takes_images_of_one_size_in_a_request(server, rng):
    server.load(None, nt.step("decode_image"), name="decode_image")
    pictures = [encoded(Image.fromarray(one), "PNG") for one in photo(rng, count=2)]
    assert decode(server, *pictures).shape == (2, 53, 71, 3)
    with pytest.raises(TritonError, match="images of one request must have one size"):
        decode(server, pictures[0], encoded(Image.fromarray(photo(rng, 8, 9)[0]), "PNG"))


@pytest.mark.parametrize("how", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [(20, 31), (90, 120), (53, 71), (1, 1)])
def test_resize_gives_pillows_pixels(run, rng, how, size):
    images = photo(rng, count=2)
    found = run("resize", {"IMAGE": images}, size=size, filter=how)["IMAGE"]
    wanted = np.stack(
        [
            np.asarray(Image.fromarray(one).resize(size[::-1], Image.Resampling[how.upper()]))
            for one in images
        ]
    )
    assert found.dtype == np.uint8
    assert levels_apart(found, wanted) <= (0 if run.place == "host" else 1)


def test_images_of_different_sizes_are_in_one_batch(server, rng):
    batch = "dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 60000000 }"
    server.load(batch, nt.step("resize", size=(8, 8)), name="resize")
    images = [photo(rng, 20 + 5 * at, 30) for at in range(3)]
    sent = [server.submit("resize", {"IMAGE": one}) for one in images]
    for image, future in zip(images, sent, strict=True):
        wanted = np.asarray(Image.fromarray(image[0]).resize((8, 8), Image.Resampling.BILINEAR))
        assert (future.result(60)["IMAGE"][0] == wanted).all()
    assert [batch.batch_size for batch in server.batches("resize")] == [3]


@pytest.mark.parametrize("size", [(60, 60), (40, 90), (200, 100)])
def test_letterbox_keeps_the_aspect_and_fills_the_rest(run, rng, size):
    images = photo(rng, 50, 100, count=2)
    found = run("letterbox", {"IMAGE": images}, size=size, colour=(1, 2, 3))["IMAGE"]
    from PIL import ImageOps

    wanted = np.stack([
        np.asarray(
            ImageOps.pad(
                Image.fromarray(one), size[::-1], method=Image.Resampling.BILINEAR, color=(1, 2, 3)
            )
        )
        for one in images
    ])  # fmt: skip
    assert levels_apart(found, wanted) <= (0 if run.place == "host" else 1)


@pytest.mark.parametrize("shape", [(50, 100), (97, 31), (480, 640)])
def test_letterbox_says_where_a_box_is_in_the_image(run, shape):
    height, width = shape
    image = np.zeros((1, *shape, 3), np.uint8)
    box = np.array([width // 4, height // 5, width // 4 + 24, height // 5 + 20])
    image[0, box[1] : box[3], box[0] : box[2]] = 255
    found = run("letterbox", {"IMAGE": image}, size=(320, 320), colour=(0, 0, 0))
    y, x = np.nonzero(found["IMAGE"][0, ..., 0] > 127)
    corners = np.array([[x.min(), y.min()], [x.max() + 1, y.max() + 1]])
    back = (corners - found["OFFSET"][0]) / found["SCALE"][0]
    pixel = 1 / found["SCALE"][0].min()
    np.testing.assert_allclose(back.reshape(-1), box, atol=pixel)


def test_letterbox_of_a_line_keeps_a_row(run):
    image = np.full((1, 1, 1000, 3), 9, np.uint8)
    found = run("letterbox", {"IMAGE": image}, size=(10, 10), colour=(0, 0, 0))["IMAGE"]
    assert (found == 9).any(axis=(2, 3)).sum() == 1


def test_crop_cuts_the_middle_or_where_it_is_told(run, rng):
    images = photo(rng, count=2)
    found = run("crop", {"IMAGE": images}, size=(20, 30))["IMAGE"]
    assert (found == images[:, 16:36, 20:50]).all()
    found = run("crop", {"IMAGE": images}, size=(20, 30), top=0, left=41)["IMAGE"]
    assert (found == images[:, :20, 41:71]).all()


@pytest.mark.parametrize("given", [{"size": (54, 10)}, {"size": (10, 10), "left": 62}])
def test_crop_refuses_what_is_outside(run, rng, given):
    with pytest.raises(TritonError, match="IMAGE has 53 x 71 pixels, too few for"):
        run("crop", {"IMAGE": photo(rng)}, **given)


def test_normalize_and_to_chw_are_torchs(run, rng):
    torch = pytest.importorskip("torch")
    images = photo(rng, count=2)
    found = run("normalize", {"IMAGE": images})["IMAGE"]
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    wanted = torch.from_numpy(images).float().div(255).sub(mean).div(std)
    np.testing.assert_array_equal(found, wanted.numpy())
    planes = run("to_chw", {"IMAGE": found})["IMAGE"]
    np.testing.assert_array_equal(planes, wanted.permute(0, 3, 1, 2).numpy())


def test_normalize_takes_other_numbers(run, rng):
    images = photo(rng)
    given = {"divisor": 1, "mean": (127.5, 127.5, 127.5), "std": (127.5, 127.5, 127.5)}
    found = run("normalize", {"IMAGE": images}, **given)["IMAGE"]
    np.testing.assert_allclose(found, images / 127.5 - 1, atol=1e-6)


# -- scores and boxes --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1, 2.5])
def test_softmax_is_the_librarys(run, rng, temperature):
    scores = rng.normal(0, 30, (3, 100)).astype(np.float32)
    found = run("softmax", {"SCORES": scores}, temperature=temperature)["PROBABILITIES"]
    wanted = scipy.special.softmax(scores / np.float32(temperature), axis=-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-12)
    assert found.dtype == np.float32


def test_top_k_has_the_labels_of_a_file(run, rng, tmp_path):
    (tmp_path / "names.txt").write_text("ant\nbee\ncrow, carrion\ndog\n")
    scores = np.array([[0.1, 0.4, 0.4, 0.2], [0.9, 0.1, 0.2, 0.3]], np.float32)
    found = run("top_k", {"SCORES": scores}, k=2, labels=tmp_path / "names.txt")
    assert found["INDICES"].tolist() == [[1, 2], [0, 3]]
    assert found["LABELS"].tolist() == [[b"bee", b"crow, carrion"], [b"ant", b"dog"]]
    np.testing.assert_array_equal(found["SCORES"], scores[[[0], [1]], found["INDICES"]])
    with pytest.raises(TritonError, match="SCORES has 3 scores for 4 labels"):
        run.server.infer("top_k", {"SCORES": scores[:, :3]})


def test_top_k_without_labels_has_the_indices_and_of_few_scores_all(run):
    found = run("top_k", {"SCORES": np.array([[3, 1, 2]], np.float32)}, k=9)
    assert found["LABELS"].tolist() == [[b"0", b"2", b"1"]]
    assert found["SCORES"].tolist() == [[3, 2, 1]]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotFoundError, match="labels of the step 'top_k': there is no file"):
        nt.step("top_k", labels=tmp_path / "none.txt")


def plain_nms(boxes, scores, classes, iou, least, most):
    """By its definition, a pair of boxes at a time."""
    kept = []
    for at in sorted(range(len(scores)), key=lambda at: (-scores[at], at)):
        if scores[at] <= least or len(kept) == most:
            continue
        if all(classes[at] != classes[k] or overlap(boxes[at], boxes[k]) <= iou for k in kept):
            kept.append(at)
    return kept


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    size = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / size


@pytest.mark.parametrize("with_classes", [True, False])
def test_nms_keeps_what_its_definition_keeps(run, rng, with_classes):
    corners = rng.uniform(0, 60, (4, 80, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(5, 40, (4, 80, 2))], -1)
    boxes, scores = boxes.astype(np.float32), rng.uniform(0, 1, (4, 80)).astype(np.float32)
    classes = rng.integers(0, 3, (4, 80)).astype(np.int32)
    inputs = {"BOXES": boxes, "SCORES": scores}
    if with_classes:
        inputs["CLASSES"] = classes
    given = {"iou_threshold": 0.4, "score_threshold": 0.2, "max_detections": 25}
    found = run("nms", inputs, **given)
    used = classes if with_classes else np.zeros_like(classes)
    lengths = []
    for at in range(4):
        kept = plain_nms(boxes[at], scores[at], used[at], 0.4, 0.2, 25)
        lengths.append(len(kept))
        np.testing.assert_array_equal(found["BOXES"][at, : len(kept)], boxes[at, kept])
        np.testing.assert_array_equal(found["SCORES"][at, : len(kept)], scores[at, kept])
        np.testing.assert_array_equal(found["CLASSES"][at, : len(kept)], used[at, kept])
        # Shorter rows are filled up.
        assert (found["SCORES"][at, len(kept) :] == 0).all()
        assert (found["CLASSES"][at, len(kept) :] == -1).all()
    assert found["BOXES"].shape == (4, max(lengths), 4)


def test_nms_of_no_boxes_gives_none(run):
    empty = {"BOXES": np.zeros((1, 0, 4), np.float32), "SCORES": np.zeros((1, 0), np.float32)}
    found = run("nms", empty)
    assert found["BOXES"].shape == (1, 0, 4)
    assert found["CLASSES"].shape == (1, 0)


# -- text and sound ----------------------------------------------------------------------------


@pytest.fixture
def tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenize wraps it")
    words = {"[PAD]": 3, "[UNK]": 1, "hello": 2, "wide": 4, "world": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


def test_tokenize_gives_the_librarys_ids(server, tokenizer):
    from tokenizers import Tokenizer

    server.load(None, nt.step("tokenize", tokenizer=tokenizer), name="tokenize")
    texts = ["hello wide world", "hello ß", ""]
    found = server.infer("tokenize", {"TEXT": np.array(texts, object)[:, None]})
    library = Tokenizer.from_file(str(tokenizer))
    library.enable_padding(pad_id=3)
    wanted = library.encode_batch(texts)
    assert found["INPUT_IDS"].tolist() == [one.ids for one in wanted]
    assert found["ATTENTION_MASK"].tolist() == [one.attention_mask for one in wanted]


def test_a_text_that_is_not_utf8_fails_no_other(server, tokenizer):
    server.load(PAIR, nt.step("tokenize", tokenizer=tokenizer), name="tokenize")
    texts = (b"hello", b"hello \xff")
    sent = [server.submit("tokenize", {"TEXT": np.array([[one]], object)}) for one in texts]
    assert [one.result(60)["INPUT_IDS"].tolist() for one in sent] == [[[2]], [[2, 1]]]


def test_tokenize_cuts_and_fills_up(server, tokenizer):
    made = nt.step("tokenize", tokenizer=tokenizer, max_length=2, pad="max_length")
    server.load(None, made, name="tokenize")
    texts = np.array([["hello wide world"], ["world"]], object)
    found = server.infer("tokenize", {"TEXT": texts})
    assert found["INPUT_IDS"].tolist() == [[2, 4], [5, 3]]
    assert found["ATTENTION_MASK"].tolist() == [[1, 1], [1, 0]]


def test_tokens_do_not_depend_on_the_texts_in_the_batch(server, tokenizer):
    batch = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"
    server.load(batch, nt.step("tokenize", tokenizer=tokenizer), name="tokenize")
    sent = [
        server.submit("tokenize", {"TEXT": np.array([[text]], object)})
        for text in ("hello", "hello wide world")
    ]
    assert [one.result(60)["INPUT_IDS"].tolist() for one in sent] == [[[2]], [[2, 4, 5]]]


@pytest.mark.parametrize("scale", ["power", "db"])
def test_mel_spectrogram_is_that_of_torchs_transform(run, rng, scale):
    torch = pytest.importorskip("torch")
    sound = rng.normal(0, 0.3, (2, 4321)).astype(np.float32)
    given = {"sample_rate": 8000, "n_fft": 256, "hop_length": 100, "n_mels": 20, "scale": scale}
    found = run("mel_spectrogram", {"AUDIO": sound}, **given)["MEL"]
    transformed = torch.stft(
        torch.from_numpy(sound), 256, 100, window=torch.hann_window(256), return_complex=True
    )
    wanted = np.einsum("fm,bft->bmt", bands(129, 20, 8000), transformed.abs().numpy() ** 2)
    if scale == "db":
        wanted = 10 * np.log10(wanted.clip(1e-10))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def bands(frequencies, mels, rate):
    """Triangles between points that are even on the mel scale, a frequency and a band at a time."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    points = [700 * (10 ** (top * at / (mels + 1) / 2595) - 1) for at in range(mels + 2)]
    found = np.zeros((frequencies, mels))
    for row in range(frequencies):
        hertz = row * rate / 2 / (frequencies - 1)
        for band in range(mels):
            low, middle, high = points[band : band + 3]
            if low < hertz <= middle:
                found[row, band] = (hertz - low) / (middle - low)
            elif middle < hertz < high:
                found[row, band] = (high - hertz) / (high - middle)
    return found


def test_mel_spectrogram_refuses_a_sound_shorter_than_half_a_window(run):
    with pytest.raises(TritonError, match="AUDIO has 200 samples, more than 200 are needed"):
        run("mel_spectrogram", {"AUDIO": np.zeros((1, 200), np.float32)})


@pytest.mark.parametrize("rates", [(44100, 16000), (8000, 16000), (16000, 16000), (48000, 44100)])
@pytest.mark.parametrize("length", [1, 999, 4410])
def test_resample_is_scipys(run, rng, rates, length):
    sound = rng.normal(0, 0.3, (2, length)).astype(np.float32)
    found = run("resample", {"AUDIO": sound}, rate_in=rates[0], rate_out=rates[1])["AUDIO"]
    wanted = scipy.signal.resample_poly(sound, rates[1], rates[0], axis=-1)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert found.dtype == np.float32
