"""The magic that sets the options of the server that the magics use."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentTypeError
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.magics.common import keep, keep_option, parse
from nbtriton.options.reading import int_list, unquoted
from nbtriton.serving.server import server

__all__ = ["OptionsMagics"]


def _gpus(text: str) -> list[int] | str | None:
    if text == "all":
        return None
    if text.startswith("simulated"):
        return text
    return [] if text == "none" else int_list(text)


def _cache_bytes(text: str) -> int | None:
    """Read a size, as a number or in tritonserver's words."""
    text = unquoted(text)
    if text == "none":
        return None
    try:
        return int(text.removeprefix("local,size="))
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is neither a number of bytes nor 'none'") from None


def _setting(text: str) -> tuple[str, str, str]:
    """Read ``BACKEND,KEY=VALUE``, or ``KEY=VALUE`` for all backends."""
    text = unquoted(text)
    if text == "none":
        return "", "", ""
    backend, comma, setting = text.partition(",")
    if not comma:
        backend, setting = "", text
    key, equals, value = setting.partition("=")
    if not (key and equals and value) or (comma and not backend):
        raise ArgumentTypeError(
            f"'{text}' is not BACKEND,KEY=VALUE, such as onnxruntime,default-max-batch-size=8"
        )
    return backend, key, value


def _recorder(text: str) -> bool | int:
    if text in ("on", "off"):
        return text == "on"
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is neither on, off nor a number of requests") from None


def _seconds(text: str) -> float | None:
    text = unquoted(text)
    try:
        return None if text == "none" else float(text)
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is neither a number of seconds nor 'none'") from None


def _policy(text: str) -> tuple[str, str, str]:
    """Read ``NAME,SETTING=VALUE``."""
    text = unquoted(text)
    if text == "none":
        return "", "", ""
    name, _, setting = text.partition(",")
    key, _, value = setting.partition("=")
    if not (name and key and value):
        raise ArgumentTypeError(f"'{text}' is not NAME,SETTING=VALUE, such as near,cpu-cores=0-3")
    return name, key, value


@magics_class
class OptionsMagics(Magics):
    """``%triton_server``."""

    @output_can_be_silenced
    @magic_arguments()
    @argument(
        "--rate-limit", choices=("off", "execution_count"),
        help="whether instances wait for the resources of their rate_limiter",
    )  # fmt: skip
    @argument(
        "--rate-limit-resource", action="append", metavar="NAME:COUNT[:GPU]",
        help="how much there is of a resource; 'none': as much as the largest need of an instance",
    )  # fmt: skip
    @argument(
        "--cache-bytes", "--cache-config", type=_cache_bytes, default=SUPPRESS, metavar="N|none",
        help="size of the response cache, for models with response_cache { enable: true }",
    )  # fmt: skip
    @argument(
        "--gpus", type=_gpus, default=SUPPRESS, metavar="IDS|all|none|simulated:N",
        help="ids of the GPUs that models may use, such as 0,1; or simulated ones, such as simulated:2 or "
        "simulated:2,memory_mib=512,matmul=20",
    )  # fmt: skip
    @argument(
        "--backend-config", type=_setting, action="append", metavar="[BACKEND,]KEY=VALUE",
        help="settings of a backend, or of all, such as default-max-batch-size=8; 'none': no more",
    )  # fmt: skip
    @argument(
        "--isolation", choices=("thread", "process", "auto"),
        help="where instances live whose model does not say it: in threads of this process, each in a "
        "process of its own, or in processes from the next load on where they waited for each other's "
        "Python code",
    )  # fmt: skip
    @argument(
        "--worker-timeout", dest="worker_timeout_s", type=_seconds, default=SUPPRESS,
        metavar="SECONDS|none",
        help="longest time of one execution in a process, which is then ended and restarted",
    )  # fmt: skip
    @argument(
        "--host-policy", type=_policy, action="append", metavar="NAME,SETTING=VALUE",
        help="cpu-cores=FIRST-LAST or numa-node=N for the processes of instances with this "
        "host_policy; 'none': no more",
    )  # fmt: skip
    @argument("--summaries", choices=("on", "off"), help="quantiles of latencies in the metrics")
    @argument(
        "--stand-in", choices=("on", "off"),
        help="whether models without their backend or file run as stand-ins of their shapes",
    )  # fmt: skip
    @argument(
        "--recorder", type=_recorder, default=SUPPRESS, metavar="N|on|off",
        help="how many requests of each model are kept for views and explanations (512)",
    )  # fmt: skip
    @keep_option
    @line_magic
    def triton_server(self, line: str) -> Any:
        """Set the options of the server that the magics use; shows all that are set.

        What is not named stays as it is, and the same options again change nothing. With other
        ones the models that are loaded are loaded anew; it says which. Python has the same by
        ``nt.server(cache_bytes=…)``::

            %triton_server --rate-limit execution_count --rate-limit-resource R1:4
            %triton_server --isolation process
            %triton_server --gpus simulated:2
            %triton_server --cache-bytes 1000000 --backend-config default-max-batch-size=8
            options = %triton_server
        """
        options = parse(self.triton_server, line)
        changes: dict[str, Any] = {}
        if options.rate_limit is not None:
            changes["rate_limit"] = options.rate_limit
        if options.rate_limit_resource is not None:
            given = [unquoted(text) for text in options.rate_limit_resource]
            changes["rate_limit_resources"] = [text for text in given if text != "none"]
        # None and False are values of these.
        changes |= {
            name: getattr(options, name)
            for name in ("cache_bytes", "gpus", "recorder", "worker_timeout_s")
            if name in options
        }
        if options.backend_config is not None:
            settings: dict[str, dict[str, str]] = {}
            for backend, key, value in options.backend_config:
                if key:
                    settings.setdefault(backend, {})[key] = value
            changes["backend_config"] = settings
        if options.isolation is not None:
            changes["isolation"] = options.isolation
        if options.host_policy is not None:
            policies: dict[str, dict[str, str]] = {}
            for policy, key, value in options.host_policy:
                if key:
                    policies.setdefault(policy, {})[key] = value
            changes["host_policies"] = policies
        if options.summaries is not None:
            changes["summaries"] = options.summaries == "on"
        if options.stand_in is not None:
            changes["stand_in"] = options.stand_in == "on"
        loaded = server().set_options(**changes)
        if loaded:
            print(f"loaded anew with these options: {', '.join(loaded)}")  # noqa: T201
        return keep(self.shell, options.out, server().options)
