"""`python -m loadmanager`."""

from loadmanager.cli import main

if __name__ == "__main__":
    main()
