"""`python -m sweep`, for where the command is not on the path, such as in a cluster's job."""

from sweep.cli import main

main()
