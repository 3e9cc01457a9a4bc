"""Text into token shards."""

from tenfold.data.fetch import fetch_shakespeare
from tenfold.prepare.local import prepare_text

__all__ = ["fetch_shakespeare", "prepare_text"]
