"""`python -m sardonyx` is the `sardonyx` command."""

from sardonyx.cli.main import main

if __name__ == "__main__":
    main()
