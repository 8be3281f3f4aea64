"""`python -m notary`: the command line where no script is installed."""

import sys

from notary.cli import main

sys.exit(main())
