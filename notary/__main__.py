"""`python -P -m notary`: the command line where no script is installed."""

import sys

if not sys.flags.safe_path:
    # Without -P Python imports from the working directory first. Others may write there: a planted module would run with the notary's key.
    del sys.path[0]

from notary.cli import main

sys.exit(main())
