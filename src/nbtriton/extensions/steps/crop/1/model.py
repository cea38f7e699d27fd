"""Cut one rectangle out of images, by default their middle: NumPy, on a GPU PyTorch."""

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, refuse, take

PARAMETERS = {
    "size": ("224,224", (1, 16384), "height and width in pixels"),
    "top": ("-1", (-1, 16384), "first row; -1: the middle"),
    "left": ("-1", (-1, 16384), "first column; -1: the middle"),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        self.size, self.corner = values["size"], (values["top"], values["left"])

    def execute(self, requests):
        return [self.respond(take(request, "IMAGE", self.device)) for request in requests]

    def respond(self, images):
        found = images.shape[1:3]
        corner = [
            round((whole - part) / 2) if first == -1 else first
            for first, whole, part in zip(self.corner, found, self.size)
        ]
        if any(a < 0 or a + part > whole for a, part, whole in zip(corner, self.size, found)):
            pixels = f"{found[0]} x {found[1]} pixels"
            return refuse(f"IMAGE has {pixels}, too few for {self.size} from {corner}")
        (top, left), (height, width) = corner, self.size
        return give(IMAGE=images[:, top : top + height, left : left + width])
