"""The errors that users meet. Each is told in one line: what was given, what is possible, what to do."""


class TenfoldError(Exception):
    """A user's mistake or a limit of the machine; the command line prints it in one line and exits with 2."""


class ConfigError(TenfoldError):
    """An option or a combination of options that cannot be."""


class DataError(TenfoldError):
    """Text, shards or a vocabulary that are missing, foreign or damaged."""


class CheckpointError(TenfoldError):
    """A run folder or checkpoint that is missing, damaged or of another model."""


class HardwareError(TenfoldError):
    """Something this machine, or this build of torch, cannot do."""
