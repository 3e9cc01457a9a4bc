"""Text into token shards."""

from tenfold.data.fetch import fetch_shakespeare
from tenfold.prepare.catalog import DATASETS, prepare_any
from tenfold.prepare.corpus import prepare, prepare_text

__all__ = ["DATASETS", "fetch_shakespeare", "prepare", "prepare_any", "prepare_text"]
