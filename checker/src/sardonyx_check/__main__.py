"""`python -m sardonyx_check`."""

from sardonyx_check.cli import main

raise SystemExit(main())
