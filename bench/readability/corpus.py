"""Excerpts of the bundled texts, and their grades of readability."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["STOP_WORDS", "excerpts", "grade", "texts"]

FOLDER = Path(__file__).with_name("texts")
# Least words of an excerpt: short and long excerpts, as in a reading test.
LENGTHS = (60, 120, 180)
_STOP = """
a about after all also an and any are as at be because been but by can could did do does for
from had has have he her hers him his how i if in into is it its may me more most my no nor not
of on one only or other our out shall she should so some such than that the their them then
there these they this those to up was we were what when where which who will with would you
your
"""
STOP_WORDS = tuple(_STOP.split())
_SENTENCE = re.compile(r"[^.!?]+[.!?]+['\")]*\s*")
_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_SYLLABLE = re.compile(r"[aeiouy]+")


@cache
def texts() -> tuple[str, ...]:
    """Return the bundled texts, each as one line."""
    files = sorted(FOLDER.glob("*.txt"))
    return tuple(" ".join(file.read_text(encoding="utf-8").split()) for file in files)


@cache
def excerpts(count: int) -> tuple[str, ...]:
    """Return different excerpts of whole sentences, spread over all texts.

    Raises
    ------
    ValueError
        The texts have fewer excerpts.
    """
    found = []
    for words in LENGTHS:
        for text in texts():
            sentences = [each.split() for each in _SENTENCE.findall(text)]
            for index in range(len(sentences)):
                excerpt = _joined(sentences[index:], words)
                if len(excerpt) >= words:
                    found.append(" ".join(excerpt))
    found = list(dict.fromkeys(found))
    if count > len(found):
        raise ValueError(f"{count} excerpts were asked for, the bundled texts have {len(found)}")
    step = len(found) / count
    return tuple(found[int(index * step)] for index in range(count))


def _joined(sentences: list[list[str]], words: int) -> list[str]:
    """Return the first sentences with at least `words` words together; else all sentences."""
    found: list[str] = []
    for sentence in sentences:
        found += sentence
        if len(found) >= words:
            break
    return found


def grade(text: str) -> float:
    """Return the Flesch-Kincaid grade level of a text, counting each group of vowels as a syllable."""
    words = _WORD.findall(text)
    sentences = max(1, len(re.findall(r"[.!?]+", text)))
    syllables = sum(max(1, len(_SYLLABLE.findall(word.lower()))) for word in words)
    return 0.39 * len(words) / sentences + 11.8 * syllables / len(words) - 15.59
