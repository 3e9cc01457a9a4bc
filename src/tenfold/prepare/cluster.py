"""Encoding on a Ray cluster. The pieces are those of every other engine: rows are read here, in order, and the ids come
back here, in order, so the shards are the same."""

import contextlib
import logging
import os
from collections.abc import Iterable

from tenfold.errors import ConfigError
from tenfold.prepare.encode import Coder, Encoded
from tenfold.prepare.workers import Batch, Results, nothing, ordered


def encode(coder: Coder, batches: Iterable[Batch], workers: int) -> Results:
    """Encodes in Ray tasks of one core each: on the cluster that the program is connected to or that RAY_ADDRESS names,
    otherwise on one of `workers` cores that is started on this machine and ended again.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("--engine ray needs Ray; run `pip install 'tenfold[ray]'`, or leave --engine out") from None
    with contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            cpus = None if os.environ.get("RAY_ADDRESS") else workers
            ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
            stack.callback(ray.shutdown)
        task = ray.remote(num_cpus=1)(Coder.encode)
        shared = ray.put(coder)
        ahead = 2 * max(workers, int(ray.cluster_resources().get("CPU", 1)))

        def result(reference: "ray.ObjectRef[Encoded]") -> Encoded:
            try:
                return ray.get(reference)
            except ray.exceptions.RayError as error:
                said = str(error).splitlines()[0]
                return Encoded(*nothing(), (0, f"or one of the rows after it ended its Ray task ({said})"))

        yield from ordered(
            batches, ahead, lambda batch: task.remote(shared, batch[0], [row.data for row in batch[1]]), result
        )
