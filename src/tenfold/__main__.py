"""`python -m tenfold` equals `tenfold`."""

from tenfold.cli import main

main()
