"""Chat templates: the prompt of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import needed
from nbtriton.extensions.openai.requests import ChatTemplate, plain_chat


def chat_template_of(tokenizer: str = "", template: str = "") -> ChatTemplate:
    """Return the function that makes a prompt of a conversation.

    Parameters
    ----------
    tokenizer : str
        Name or folder of a Hugging Face tokenizer with a chat template; needs ``transformers``.
    template : str
        A Jinja template, or a file with one, used instead; needs ``jinja2``. Without either a conversation
        becomes lines ``role: text``.

    Raises
    ------
    UnsupportedError
        A package is missing.
    InvalidArgumentError
        The tokenizer or the template cannot be read.
    """
    text = _text(template)
    if tokenizer:
        with needed("a tokenizer's chat template", package="transformers"):
            from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]
        try:
            loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(
                f"cannot load the tokenizer '{tokenizer}': {error}"
            ) from None

        def of_tokenizer(messages: Sequence[Mapping[str, Any]]) -> str:
            prompt: str = loaded.apply_chat_template(
                conversation=list(messages), tokenize=False, add_generation_prompt=True,
                chat_template=text or None,
            )  # fmt: skip
            return prompt

        return of_tokenizer
    if not text:
        return plain_chat
    with needed("a chat template", package="jinja2"):
        from jinja2 import TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    try:
        made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(text)
    except TemplateSyntaxError as error:
        raise InvalidArgumentError(f"the chat template cannot be read: {error}") from None
    return lambda messages: made.render(messages=messages, add_generation_prompt=True)


def _text(template: str) -> str:
    """Return a template's text, or the text of its file."""
    if not template or "{" in template or "\n" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot read the chat template '{template}': {error.strerror}"
        ) from None
