module notary.example/reader

go 1.25.0
