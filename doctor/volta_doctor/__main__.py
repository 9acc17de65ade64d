"""`python -m volta_doctor`."""

from volta_doctor.cli import main

main()
