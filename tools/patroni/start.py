"""Started by `python3 -I -B start.py patroni.yml`: Patroni of this bundle, whatever else is installed.
`python3 -I -B start.py ctl …` is patronictl."""

import os
import sys

# Modules of the bundle come before the system's. psycopg's own choice could find a compiled part of the system's.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site"))
os.environ.setdefault("PSYCOPG_IMPL", "python")

# Patroni starts itself again to start PostgreSQL ('spawn'), and reads this file without running it then.
if __name__ == "__main__":
    if sys.argv[1:2] == ["ctl"]:
        from patroni.ctl import ctl

        del sys.argv[1]
        sys.argv[0] = "patronictl"
        sys.exit(ctl(prog_name="patronictl"))
    from patroni.__main__ import main

    sys.exit(main())
