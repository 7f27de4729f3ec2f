"""`python -m steadysum`: the same as the command `steadysum`."""

from steadysum.cli.main import main

if __name__ == "__main__":
    main()
