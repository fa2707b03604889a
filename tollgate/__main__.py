"""`python -m tollgate`."""

from tollgate.cli import main

if __name__ == "__main__":
    main()
