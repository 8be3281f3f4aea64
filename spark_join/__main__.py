"""The entry point of `python -P -m spark_join verify|archive|nightly|restore …`; `spark-submit` runs it too. See `commands`.

Without Spark's packages, or with damaged ones, the exit code is 2 (`COULD_NOT`). Python's own exit code, 1, would mean that there are
violations.
"""

import sys
import traceback

from spark_join.arguments import parser
from spark_join.errors import COULD_NOT

if __name__ == "__main__":
    chosen = parser().parse_args()
    try:
        from spark_join.commands import run
    except ModuleNotFoundError as missing:
        print(f"spark_join: {missing.name} is not installed: pip install 'kafka-notary[spark]'", file=sys.stderr)
        sys.exit(COULD_NOT)
    except Exception:
        traceback.print_exc()  # a library that does not load, or a package of another version
        sys.exit(COULD_NOT)
    sys.exit(run(chosen))
