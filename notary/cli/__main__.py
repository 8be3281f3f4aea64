"""`python -m notary.cli`: the command line where no script is installed."""

import sys

from notary.cli import main

sys.exit(main())
