"""The entry point of `python -P -m spark_join verify|archive|restore …`; `spark-submit` runs it too. See `commands`.

Without Spark's packages the exit code is 2 (`COULD_NOT`). Python's own exit code, 1, would mean that there are violations.
"""

import sys

from spark_join.exit_codes import COULD_NOT

try:
    from spark_join.commands import main
except ModuleNotFoundError as missing:
    print(f"spark_join: {missing.name} is not installed: pip install 'kafka-notary[spark]'", file=sys.stderr)
    sys.exit(COULD_NOT)

if __name__ == "__main__":
    sys.exit(main())
