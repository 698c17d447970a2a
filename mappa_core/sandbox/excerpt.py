"""A stream of bytes as text of bounded length: head and tail kept, the middle counted, whatever its size."""

from __future__ import annotations

import codecs


class Excerpt:
    """Takes a stream as it comes; holds at most twice `keep` characters."""

    def __init__(self, keep: int) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._head_size, self._tail_size = keep - keep // 2, keep // 2
        self._head, self._tail = "", ""
        self._left_out = 0
        self.bytes = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; none: the end."""
        self.bytes += len(data)
        text = self._decode(data, not data)
        room = self._head_size - len(self._head)
        self._head += text[:room]
        tail = self._tail + text[room:]
        kept = tail[len(tail) - self._tail_size :] if len(tail) > self._tail_size else tail
        self._left_out += len(tail) - len(kept)
        self._tail = kept

    def text(self) -> str:
        """What was kept."""
        middle = f"\n[... {self._left_out} characters left out ...]\n" if self._left_out else ""
        return self._head + middle + self._tail
