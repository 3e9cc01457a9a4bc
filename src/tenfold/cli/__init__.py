"""The command line: each verb parses, calls and prints. torch is imported by the verbs that need it, not by --help."""

from tenfold.cli.entry import call, finish, main

__all__ = ["call", "finish", "main"]
