"""The part of the verifier that runs on Spark and knows nothing of a notary.

| module | contents |
|---|---|
| `session` | the Spark session and its Java |
| `stages` | results as Parquet, one stage after the other, and the display of the progress |
| `files` | complete Parquet folders, synced files, recorded hashes |
| `columns` | numbers inside binary columns, and running aggregates |
"""
