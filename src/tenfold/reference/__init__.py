"""Known figures with their sources, as data. They were published by others and are not re-measured here."""
