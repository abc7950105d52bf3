"""`python -m offgen`."""

from offgen.cli import main

if __name__ == "__main__":
    main()
