"""Run the `sardonyx` command with `python -m sardonyx`."""

from sardonyx.cli.main import main

if __name__ == "__main__":
    main()
