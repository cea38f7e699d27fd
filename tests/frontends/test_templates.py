"""The template cache: bounded in number and in the length of its texts."""

from __future__ import annotations

from nbtriton.serving.frontends.buffers import TemplateCache


def test_a_template_is_found_by_its_text() -> None:
    cache = TemplateCache[int]()
    cache.remember(b"a", 1)
    assert (cache.find(b"a"), cache.find(b"b")) == (1, None)


def test_a_full_cache_starts_anew() -> None:
    cache = TemplateCache[int]()
    for number in range(257):
        cache.remember(b"%d" % number, number)
    assert (cache.find(b"0"), cache.find(b"255"), cache.find(b"256")) == (None, None, 256)


def test_long_texts_are_not_kept() -> None:
    cache = TemplateCache[int]()
    cache.remember(bytes(4096), 1)
    cache.remember(bytes(4097), 2)
    assert (cache.find(bytes(4096)), cache.find(bytes(4097))) == (1, None)
