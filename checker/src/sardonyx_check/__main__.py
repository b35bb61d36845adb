"""Run the program with `python -m sardonyx_check`."""

import sys

from sardonyx_check.cli import main

sys.exit(main())
