"""``python -m engine.cli COMMAND``."""

from engine.cli.main import main

raise SystemExit(main())
