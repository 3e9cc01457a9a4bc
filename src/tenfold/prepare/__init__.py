"""Text into token shards."""

from tenfold.prepare.local import prepare_text

__all__ = ["prepare_text"]
