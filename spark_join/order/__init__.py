"""The join: from the records of both topics to the requests in the global order.

| module | contents |
|---|---|
| `ordering_records` | decoded ordering records, with the signer of each |
| `payloads` | decoded payload values, and the parties' signatures |
| `effects` | the ordering records that take effect, and the history over them (R2, R5, R6, R10) |
| `contents` | the content of each entry (R3), and the position of each first occurrence (R7) |
| `anomalies` | missing offsets and sequences, and foreign views |
| `join` | runs these, step by step |
"""
