"""Programs of PyTriton's interface: the package, three free ports, and the file for the answers."""

import importlib
import sys
from pathlib import Path

import numpy as np

PACKAGE, HTTP, GRPC, METRICS = sys.argv[1:5]
ANSWERS = Path(sys.argv[5]).open("w")  # noqa: SIM115 - until the end
decorators, model_config, server, client, exceptions = (
    importlib.import_module(f"{PACKAGE}.{name}")
    for name in ("decorators", "model_config", "triton", "client", "exceptions")
)
batch, sample = decorators.batch, decorators.sample
ModelConfig, Tensor = model_config.ModelConfig, model_config.Tensor


def say(name, result):
    shown = {key: (value.dtype.kind, value.tolist()) for key, value in sorted(result.items())}
    print(name, shown, file=ANSWERS, flush=True)


def refused(name, call):
    try:
        call()
    except Exception as error:
        kinds = [
            kind.__name__ for kind in type(error).__mro__ if kind.__name__.startswith("PyTriton")
        ]
        print(name, kinds, file=ANSWERS, flush=True)
    else:
        print(name, "nothing was refused", file=ANSWERS, flush=True)


@batch
def linear(data):
    return [data * np.array([[-1]], dtype=np.float32)]


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


@batch
def upper(text):
    return [np.char.upper(text.astype("S"))]


@sample
def total(data):
    return [data.sum(keepdims=True)]


@batch
@decorators.group_by_values("factor")
@decorators.first_value("factor")
def scaled(data, factor):
    return {"result": data * factor}


@decorators.fill_optionals(factor=np.array([3], dtype=np.float32))
@decorators.group_by_keys
@batch
def filled(data, factor):
    return [data * factor]


def one_by_one(requests):
    return [{"result": one["data"] + float(one.parameters.get("plus", 0))} for one in requests]


@batch
def counted(data):
    for number in range(3):
        yield {"result": data + number}


@batch
def picky(data):
    raise ValueError("not today")


def wrong(requests):
    return [{"result": [1]} for _ in requests]


row = Tensor(name="data", dtype=np.float32, shape=(-1,))
result = Tensor(name="result", dtype=np.float32, shape=(-1,))
factor = Tensor(name="factor", dtype=np.float32, shape=(1,), optional=True)
pair = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("a", "b")]
config = server.TritonConfig(
    http_address="127.0.0.1", http_port=int(HTTP), grpc_port=int(GRPC), metrics_port=int(METRICS)
)
GRPC_URL = f"grpc://127.0.0.1:{GRPC}"


def ask(name, *inputs, call="infer_batch", url=f"http://127.0.0.1:{HTTP}", **options):
    with client.ModelClient(url, name) as found:
        return getattr(found, call)(*inputs, **options)


triton = server.Triton(config=config)
triton.bind("Linear", linear, inputs=[row], outputs=[result])
triton.bind("Two", [linear, linear], inputs=[row], outputs=[result])
triton.run()
outputs = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("add", "sub")]
triton.bind("AddSub", add_sub, inputs=pair, outputs=outputs, config=ModelConfig(max_batch_size=16))
text = Tensor(dtype=np.bytes_, shape=(1,))
triton.bind(
    "Upper", upper, inputs=[Tensor(name="text", dtype=np.bytes_, shape=(1,))], outputs=[text]
)
triton.bind("Total", total, [row], [result], config=ModelConfig(batching=False))
triton.bind("Scaled", scaled, [row, factor], [result])
triton.bind("Filled", filled, [row, factor], [result])
triton.bind("Plain", one_by_one, [row], [result], strict=True)
triton.bind("Counted", counted, [row], [result], config=ModelConfig(decoupled=True))
triton.bind("Picky", picky, [row], [result])
triton.bind("Wrong", wrong, [row], [result])

data = np.float32([[1, 2], [3, 4]])
say("linear", ask("Linear", data))
say("a sample", ask("Linear", data[0], call="infer_sample"))
say("gRPC", ask("Linear", data, url=GRPC_URL))
say("two instances", ask("Two", data))
say("two outputs", ask("AddSub", data, data + 1))
say("text", ask("Upper", np.array([[b"ab"], [b"c"]])))
say("without batches", ask("Total", data[0], call="infer_sample"))
say("groups", ask("Scaled", data, np.float32([[2], [5]])))
say("optional", ask("Filled", data=data))
say("not optional", ask("Filled", data=data, factor=np.float32([[1], [2]])))
say("parameters", ask("Plain", data, parameters={"plus": 2}))
with client.DecoupledModelClient(GRPC_URL, "Counted") as found:
    for answer in found.infer_batch(data):
        say("a stream", answer)
with client.FuturesModelClient(f"http://127.0.0.1:{HTTP}", "Linear") as found:
    say("a future", found.infer_sample(data[0]).result(60))
refused("an error of the function", lambda: ask("Picky", data))
refused("a wrong result", lambda: ask("Wrong", data))
refused("no batches", lambda: ask("Total", data))
refused("bound twice", lambda: triton.bind("Linear", linear, [row], [result]))
refused("a name", lambda: triton.bind("a b", linear, [row], [result]))
refused("an optional output", lambda: triton.bind("x", linear, [row], [factor]))
print("stopped", triton.stop(), triton.stop(), file=ANSWERS, flush=True)
