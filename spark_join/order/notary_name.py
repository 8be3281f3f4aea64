"""The notary's name, which no record says and every transaction id has in it: a wrong one is told from a log of violations.

Under another name every content still decodes, and none has its entry's ids; all would be told as `id-mismatch`, of which nothing is true.
So where not one content has them, and one decodes with others, nothing can be said, unless a signature does: it is made over the name too.
Contents that do not decode say nothing of the name.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import NAME_BYTES_MAX
from spark_join.errors import CouldNotVerify


def refuse_no_name(notary_name: str) -> None:
    """Raise `CouldNotVerify` for what no notary is called."""
    try:
        fits = 1 <= len(notary_name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # octets of the command line that are no text
        fits = False
    if not fits:
        raise CouldNotVerify(f"--notary {notary_name!r} is no notary's name, which has 1 to {NAME_BYTES_MAX} bytes of UTF-8")


def refuse_other_name(unreadable: DataFrame, notary_name: str, *, signatures: bool) -> None:
    """Of a log of which no content has its entry's ids: raise `CouldNotVerify` where that may be the name.

    `unreadable` as in `contents.Contents`. `signatures`: whether they were checked.
    """
    (other,) = (
        unreadable.where(F.col("faults").isNotNull())
        .agg(F.count("*").alias("contents"), F.count_if(F.col("faults") == 0).alias("signed"))
        .collect()
    )
    if not other.contents or (signatures and other.signed):
        return
    told = (
        "no signature is right under it either"
        if signatures
        else "if it is right, give --parties: signatures tell, and these are violations"
    )
    raise CouldNotVerify(f"{other_name(notary_name, other.contents)} ({told}); an archive that has another name is to be made again")


def other_name(notary_name: str, contents: int) -> str:
    """What is wrong, and what to do."""
    return (
        f"{contents} contents can be read, and not one has the transaction ids of its entry, which hash the notary's name, {notary_name!r}:"
        " that is not whose log this is, or these payloads are another's. Give its name with --notary, to the letter"
    )
